"""Search by prefixes of the embeddings, with exact scores for the candidates."""

import numpy as np
import pytest
from retrieval_sets import assert_same, naive_search

from keras_dml.retrieval import METRICS, ExactIndex, PrefixIndex, load_index


def rows(n=120, d=12, seed=0):
    """Rows whose first numbers matter most, as with a Matryoshka loss; some are far from 0."""
    scale = 0.6 ** np.arange(d)
    return np.random.default_rng(seed).normal(size=(n, d)) * scale + (np.arange(d) == 1)


def naive(items, queries, k, metric, length, candidates):
    """Compute each query in a loop, by the definition."""
    found = []
    for query in queries:
        (near,) = naive_search(items[:, :length], [query[:length]], metric)
        kept = sorted(row for row, _ in near[: max(k, candidates)])
        (order,) = naive_search(items, [query], metric, kept)
        found.append([row for row, _ in order[:k]])
    return np.array(found)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("k", "candidates"), [(1, 5), (5, 20), (9, 3), (3, 500)])
def test_the_nearest_of_the_candidates_by_prefixes(metric, k, candidates):
    items, queries = rows(), rows(20, seed=1)
    index = PrefixIndex(items, metric, length=3, candidates=candidates)
    found, scores = index.search(queries, k)
    np.testing.assert_array_equal(found, naive(items, queries, k, metric, 3, candidates))
    exact, exact_scores = ExactIndex(items, metric).search(queries, len(items))
    for number in range(len(queries)):  # scores are exact for the items that the search returns
        where = [list(exact[number]).index(row) for row in found[number]]
        np.testing.assert_array_equal(scores[number], exact_scores[number][where])
    assert (found != exact[:, :k]).any() == (candidates < 500)


def test_recall_is_measured_and_grows_with_the_candidates():
    items = rows(400)
    few, many, all_of_them = (
        PrefixIndex(items, length=2, candidates=number).measured_recall for number in (5, 60, 400)
    )
    assert few < many < all_of_them == 1.0
    exact, _ = ExactIndex(items).search(items, 11)
    found, _ = PrefixIndex(items, length=2, candidates=60).search(items, 11)
    others = [set(a) & set(b) - {row} for row, (a, b) in enumerate(zip(exact, found))]
    assert many == pytest.approx(sum(map(len, others)) / (10 * 400), abs=1e-9)
    assert PrefixIndex(items[:1], length=2).measured_recall == 1.0


@pytest.mark.parametrize("metric", METRICS)
def test_it_is_saved_added_to_and_served(metric, tmp_path):
    items, queries = rows(), rows(6, seed=1)
    names = [f"item {number}" for number in range(120)]
    index = PrefixIndex(items[:100], metric, names[:100], length=2, candidates=8)
    index.search(queries, 3)
    index.add(items[100:], names[100:])
    index.save(tmp_path / "index")
    loaded = load_index(tmp_path / "index")
    assert isinstance(loaded, PrefixIndex)
    assert (loaded.length, loaded.candidates) == (2, 8)
    assert_same(loaded, index, queries, 5)
    ids, _ = index.search(queries, 5)
    for name, row in zip(ids, naive(items, queries, 5, metric, 2, 8)):
        assert list(name) == [names[number] for number in row]
    exact, exact_scores = ExactIndex(items, metric, names).search(queries, 5)
    assert (ids != exact).any()
    served, scores = index.serving_module().search(np.float32(queries), 5)
    assert np.char.decode(served.numpy().astype("S")).tolist() == exact.tolist()
    np.testing.assert_allclose(scores, exact_scores, rtol=1e-6, atol=1e-6)


def test_zeros_and_prefixes_of_zeros_are_found_last():
    items = rows(30)
    items[3], items[4, :3] = 0, 0
    found, scores = PrefixIndex(items, length=3, candidates=30).search(items, 30)
    expected, expected_scores = ExactIndex(items).search(items, 30)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(scores, expected_scores)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 12}, "length must be less than the 12 dimensions.* but got 12"),
        ({"length": 0}, "length must be .* but got 0"),
        ({"length": 2.5}, "length must be .* but got 2.5"),
        ({"length": 2, "candidates": 0}, "candidates must be .* but got 0"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        PrefixIndex(rows(), **arguments)


def test_equally_near_candidates_are_the_lowest_rows():
    index = PrefixIndex(rows(), length=3, candidates=5)
    assert index.search(np.zeros((1, 12)), 5)[0].tolist() == [[0, 1, 2, 3, 4]]
