"""Similarities of pairs: their counts and their figure."""

import numpy as np
import pytest

from experiments.evaluation.pairs import (
    pair_rows,
    rows_of_some_classes,
    similarities,
    similarity_histograms,
)
from experiments.pages.figures import svg


def test_each_pair_of_a_set_is_counted_once():
    embeddings, labels = (
        np.random.default_rng(0).normal(size=(7, 3)),
        np.array([0, 0, 0, 1, 1, 2, 3]),
    )
    found = similarities(embeddings, labels)
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    pairs = {True: [], False: []}
    for first in range(7):
        for second in range(first):
            pairs[bool(labels[first] == labels[second])].append(unit[first] @ unit[second])
    for counts, mean, kind in (
        (found.matching, found.matching_mean, True),
        (found.other, found.other_mean, False),
    ):
        np.testing.assert_array_equal(counts, np.histogram(pairs[kind], 80, (-1, 1))[0])
        assert mean == pytest.approx(np.mean(pairs[kind]), abs=1e-6)


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
