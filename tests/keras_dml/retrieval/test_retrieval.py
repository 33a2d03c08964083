import math

import numpy as np
import pytest
from retrieval_sets import naive_search, needs_scann

from keras_dml.retrieval import METRICS, ExactIndex, ScannIndex

INDEXES = [ExactIndex, pytest.param(ScannIndex, marks=needs_scann)]


def naive(embeddings, queries, k, metric):
    """Return rows and scores of the k best items of each query."""
    found = np.array([order[:k] for order in naive_search(embeddings, queries, metric)])
    return found[..., 0], found[..., 1]


def with_duplicates(n=90, d=7, seed=0):
    """Return random rows; one is repeated 30 times (more than any spare), and three are zeros."""
    embeddings = np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)
    embeddings[20:50] = embeddings[3]
    embeddings[[8, 60, 70]] = 0
    return embeddings


@pytest.mark.parametrize("index_class", INDEXES)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("k", [1, 31, 90])
def test_search_agrees_with_a_naive_loop(index_class, metric, k):
    embeddings = with_duplicates()
    queries = np.concatenate([embeddings, with_duplicates(seed=1)[:20]])
    rows, scores = index_class(embeddings, metric).search(queries, k)
    expected_rows, expected_scores = naive(embeddings, queries, k, metric)
    assert rows.dtype == np.int64 and scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(rows, expected_rows)


@needs_scann
@pytest.mark.parametrize(("offset", "scale"), [(0, 1), (1, 1e-3), (0, 1e-20), (0, 1e18)], ids=str)
def test_scann_and_exact_agree(offset, scale):
    # At (1, 1e-3) the rows almost coincide, so that float32 products cannot order them.
    generator = np.random.default_rng(0)
    embeddings = (offset + scale * generator.normal(size=(600, 33))).astype(np.float32)
    embeddings[100:160] = embeddings[7]
    for k in (1, 10, 64):
        expected = ExactIndex(embeddings, "l2").search(embeddings, k)
        found = ScannIndex(embeddings, "l2").search(embeddings, k)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("index_class", INDEXES)
def test_equal_distances_of_unequal_rows_keep_row_order(index_class):
    # Points of a grid: many distances are equal although the rows differ.
    embeddings = np.random.default_rng(0).integers(-2, 3, size=(400, 4)).astype(np.float32)
    for k in (1, 10, 50):
        rows, _ = index_class(embeddings, "l2").search(embeddings[:40], k)
        expected, _ = naive(embeddings, embeddings[:40], k, "l2")
        np.testing.assert_array_equal(rows, expected)


def clusters(count, copies, length, gap, d=24, seed=0):
    """Return near copies of a few long vectors, `gap` apart; every seventh is an exact copy."""
    generator = np.random.default_rng(seed)
    centers = generator.normal(size=(count, d))
    centers *= length / np.linalg.norm(centers, axis=1, keepdims=True)
    rows = np.repeat(centers, copies, axis=0)
    rows += generator.normal(size=rows.shape) * gap / np.sqrt(2 * d)
    rows[::7] = rows[3::7][: len(rows[::7])].repeat(2, axis=0)[: len(rows[::7])]
    return generator.permutation(rows.astype(np.float32))


def brute_force(rows, queries, metric):
    """Return the items' order and scores for each query, from the rows of an index."""
    rows, queries = rows.astype(np.float64), queries.astype(np.float64)
    if metric == "cosine":
        scores = np.array([[math.fsum(pair) for pair in rows * query] for query in queries])
    else:
        scores = np.sqrt(np.square(rows - queries[:, None]).sum(axis=2))
    scores = scores.astype(np.float32)
    order = np.argsort(-scores if metric == "cosine" else scores, axis=1, kind="stable")
    return order, np.take_along_axis(scores, order, 1)


@pytest.mark.parametrize(
    ("count", "copies", "length", "gap"),
    [(5, 20, 1100, 1.5e-4), (2, 60, 1e6, 0.1), (30, 5, 1e-18, 1e-25), (3, 40, 1e15, 1e8)],
    ids=str,
)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("index_class", INDEXES)
def test_near_copies_in_clusters_far_from_their_mean(
    count, copies, length, gap, metric, index_class
):
    embeddings = clusters(count, copies, length, gap)
    index = index_class(embeddings, metric)
    rows_of_index = index.embeddings_of(index.ids)
    some = np.flatnonzero(np.arange(len(embeddings)) % 3)
    expected, expected_scores = brute_force(rows_of_index, rows_of_index, metric)
    expected_some, _ = brute_force(rows_of_index[some], rows_of_index, metric)
    for k in (1, 2, 10, copies + 3):
        rows, scores = index.search(embeddings, k)
        np.testing.assert_array_equal(rows, expected[:, :k])
        np.testing.assert_array_equal(scores, expected_scores[:, :k])
        rows, _ = index.search(embeddings, k, allowed=some)
        np.testing.assert_array_equal(rows, some[expected_some[:, :k]])


@pytest.mark.parametrize("index_class", INDEXES)
@pytest.mark.parametrize(("k", "items"), [(3, 10), (10, 10), (3, 60)])
def test_distances_beyond_float32_products(index_class, k, items):
    embeddings = np.random.default_rng(0).normal(size=(items, 3)) * (1e25 if items == 10 else 1e19)
    rows, _ = index_class(embeddings, "l2").search(embeddings, k)
    np.testing.assert_array_equal(rows, naive(embeddings, embeddings, k, "l2")[0])


@pytest.mark.parametrize("index_class", INDEXES)
def test_all_rows_equal(index_class):
    for value in (0, 1):
        for metric in METRICS:
            rows, _ = index_class(np.full((40, 3), value), metric).search(np.ones((2, 3)), 5)
            assert rows.tolist() == [[0, 1, 2, 3, 4]] * 2


@pytest.mark.parametrize("index_class", INDEXES)
@pytest.mark.parametrize("metric", METRICS)
def test_the_index_does_not_change_with_the_callers_array(index_class, metric):
    embeddings = with_duplicates()
    mine = embeddings.copy()
    index = index_class(mine, metric)
    before = index.search(embeddings, 4)
    mine[:] = 0
    for one, other in zip(before, index.search(embeddings, 4)):
        np.testing.assert_array_equal(one, other)


def bad(values):
    embeddings = np.zeros((9, 2), np.float32)
    for row, value in values.items():
        embeddings[row, 1] = value
    return embeddings


@pytest.mark.parametrize("index_class", INDEXES)
@pytest.mark.parametrize(
    ("embeddings", "metric", "message"),
    [
        (np.zeros((3, 2)), "dot", r"metric must be one of 'cosine', 'l2', but got 'dot'"),
        (np.zeros(3), "l2", r"embeddings must be .*\[n, d\].*\(3,\)"),
        (np.zeros((3, 0)), "l2", r"embeddings must be .*\(3, 0\)"),
        (np.zeros((0, 3)), "l2", r"at least one row.*\(0, 3\)"),
        ([["a", "b"]], "l2", "embeddings must be an array of numbers"),
        (bad({4: np.nan, 7: -np.inf}), "cosine", r"in 2 of 9 rows \(row numbers 4, 7\)"),
        (bad(dict.fromkeys(range(1, 9), np.nan)), "l2", r"8 of 9 .*numbers 1, 2, 3, 4, 5, …\)"),
        (np.full((2, 2), 1e39), "l2", "NaN or infinity in 2 of 2 rows"),
    ],
)
def test_invalid_items(index_class, embeddings, metric, message):
    with pytest.raises(ValueError, match=message):
        index_class(embeddings, metric)


@pytest.mark.parametrize("index_class", INDEXES)
@pytest.mark.parametrize(
    ("queries", "k", "message"),
    [
        (np.zeros((1, 2)), 3.0, "k must be a whole number from 1 to 9, but got 3.0"),
        (np.zeros((1, 2)), 0, "k must be a whole number from 1 to 9, but got 0"),
        (np.zeros((1, 2)), 10, "k must be .* but got 10"),
        (np.zeros((1, 2)), np.nan, "k must be .* but got nan"),
        (np.zeros((1, 3)), 1, r"queries must be rows of 2 dimensions.*\(1, 3\)"),
        (np.zeros(2), 1, r"queries must be .*\[n, d\]"),
        ([[0, 1], [np.inf, 0]], 1, r"queries must be finite.*1 of 2 rows \(row numbers 1\)"),
    ],
)
def test_invalid_queries(index_class, queries, k, message):
    with pytest.raises(ValueError, match=message):
        index_class(bad({}), "l2").search(queries, k)
