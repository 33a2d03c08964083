"""Chosen queries, recall per class, and similarities of pairs, compared with loops."""

import numpy as np
import pytest

from experiments.evaluation.figures import (
    pair_rows,
    rows_of_some_classes,
    similarities,
    similarity_histograms,
)
from experiments.pages.figures import svg
from experiments.pages.query_order import (
    Answers,
    best_and_worst,
    choose_queries,
    class_recalls,
    margins,
)


def some_answers(seed=0):
    """Return the six nearest images of 60 queries of seven classes."""
    rng = np.random.default_rng(seed)
    similarities = -np.sort(-rng.normal(size=(60, 6)).astype("float32"), axis=1)
    labels, found = rng.integers(0, 7, 60), rng.integers(0, 7, (60, 6))
    found = np.where(rng.random((60, 6)) < 0.4, labels[:, None], found)
    return Answers(rng.permutation(60), labels, found, similarities)


def test_margins():
    answers = some_answers()
    for place, margin in enumerate(margins(answers)):
        similarities = answers.similarities[place]
        match = answers.found[place] == answers.labels[place]
        own, other = (next(iter(similarities[some]), similarities[-1]) for some in (match, ~match))
        assert margin == own - other


def test_best_and_worst_queries_have_different_classes_and_signs():
    answers = some_answers(1)
    of = {query: number for number, query in enumerate(answers.queries)}
    gaps = margins(answers)
    best, worst = best_and_worst(answers, 4)
    assert len(best) == len(worst) == 4
    assert gaps[of[best[0]]] == gaps.max()
    assert gaps[of[worst[0]]] == gaps.min()
    for chosen, falling in ((best, True), (worst, False)):
        assert len({answers.labels[of[query]] for query in chosen}) == 4
        values = [gaps[of[query]] for query in chosen]
        assert values == sorted(values, reverse=falling)
        assert all((value > 0) == falling for value in values)


def test_correct_answers_have_no_worst_queries():
    answers = some_answers(2)
    answers = answers._replace(found=np.repeat(answers.labels[:, None], 6, axis=1))
    best, worst = best_and_worst(answers, 4)
    assert (len(best), len(worst)) == (4, 0)
    assert all(one.instead is None for one in class_recalls(answers))


def test_recall_of_each_class():
    answers = some_answers(3)
    found = class_recalls(answers)
    assert [one.label for one in sorted(found, key=lambda one: one.label)] == sorted(
        set(answers.labels.tolist())
    )
    shares = [one.right / one.queries for one in found]
    assert shares == sorted(shares)
    for one in found:
        own = [n for n, label in enumerate(answers.labels) if label == one.label]
        wrong = [n for n in own if answers.found[n, 0] != one.label]
        assert (one.queries, one.right) == (len(own), len(own) - len(wrong))
        counts = np.bincount([answers.found[n, 0] for n in wrong], minlength=7)
        assert one.instead is not None
        assert counts[one.instead] == counts.max()
        most = max(wrong, key=lambda n: answers.similarities[n, 0])
        assert one.example == answers.queries[most]


def test_queries_are_spread_over_the_classes():
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(100), 3))
    rows = choose_queries(labels, num=10, seed=5)
    assert rows.dtype == np.int64
    assert sorted(labels[rows] // 10) == list(range(10))
    np.testing.assert_array_equal(rows, choose_queries(labels, num=10, seed=5))
    assert set(rows) != set(choose_queries(labels, num=10, seed=6))


def test_few_classes_have_several_queries():
    labels = np.array([7, 7, 7, 7, 3, 3, 5])
    rows = choose_queries(labels, num=4)
    assert sorted(labels[rows]) == [3, 3, 7, 7]
    everything = choose_queries(labels, num=50)
    assert sorted(everything) == [0, 1, 2, 3, 4, 5]  # no image matches query 6
    # Queries without a match are the last resort.
    assert len(set(choose_queries([4, 2, 9], num=2))) == 2


def test_each_pair_of_a_set_is_counted_once():
    embeddings = np.random.default_rng(0).normal(size=(7, 3))
    labels = np.array([0, 0, 0, 1, 1, 2, 3])
    found = similarities(embeddings, labels)
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    first, second = np.triu_indices(7, 1)
    cosines, same = (unit[first] * unit[second]).sum(axis=1), labels[first] == labels[second]
    for counts, mean, values in (
        (found.matching, found.matching_mean, cosines[same]),
        (found.other, found.other_mean, cosines[~same]),
    ):
        np.testing.assert_array_equal(counts, np.histogram(values, 80, (-1, 1))[0])
        assert mean == pytest.approx(np.mean(values), abs=1e-6)


def test_each_query_is_paired_with_the_whole_gallery():
    queries, items = np.eye(4)[:2], np.eye(4)[:3]
    found = similarities(queries, np.array([0, 1]), items, np.array([0, 1, 1]))
    assert (found.matching.sum(), found.other.sum()) == (3, 3)
    assert found.matching_mean == pytest.approx(2 / 3) and found.other_mean == 0


def test_the_figure_shows_means_and_omits_sets_without_pairs():
    near = similarities(np.array([[1, 0], [1, 0.1], [0, 1]]), np.array([5, 5, 2**40]))
    alone = similarities(np.eye(3), np.arange(3))
    figure = svg("Pairs", similarity_histograms({"before": alone, "after": near}))
    assert "after: matching 1.00, others 0.05" in figure and "before" not in figure
    assert svg("Pairs", similarity_histograms({"before": alone})) == ""
    assert np.isnan(alone.matching_mean)


def test_rows_of_a_large_set_are_sampled_with_their_gallery():
    labels = np.repeat([3, 8], 5000)
    rows, items = pair_rows({"test": labels, "gallery": np.array([8, 1, 3])}).values()
    assert len(rows) == 1000 and set(labels[rows]) == {3, 8} and items.tolist() == [0, 2]
    np.testing.assert_array_equal(rows, pair_rows({"test": labels})["test"])


def test_a_large_set_is_reduced_by_whole_classes():
    labels = np.repeat(np.arange(1000), 9)
    rows = rows_of_some_classes(labels)
    _, sizes = np.unique(labels[rows], return_counts=True)
    assert set(sizes) == {9} and 3900 < len(rows) <= 4000
    assert len(rows_of_some_classes(np.repeat([0, 1], 5000))) == 10000
