"""Re-ranking against loops over the formulas, in a search, and with bad values."""

import functools
import math

import numpy as np
import pytest

from keras_dml.retrieval import (
    ExactIndex,
    augment_items,
    build_index,
    expand_queries,
    k_reciprocal_distances,
    reranking,
)

RNG = np.random.default_rng(0)
QUERIES, ITEMS = RNG.normal(size=(6, 5)), RNG.normal(size=(25, 5))
ITEMS[7] = 2 * ITEMS[3]  # a duplicate after normalization
ITEMS[11] = 0


def unit(rows):
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(lengths == 0, 1, lengths)).astype("float32")


def product(a, b):
    return sum(float(x) * float(y) for x, y in zip(a, b))


def naive_expansion(query, others, k, alpha):
    nearest = sorted(range(len(others)), key=lambda j: (-np.float32(product(query, others[j])), j))
    total = np.array(query, np.float64)
    for j in nearest[:k]:
        total += max(product(query, others[j]), 0) ** alpha * others[j]
    return total / (np.linalg.norm(total) or 1)


def naive_reciprocal(queries, gallery, k1, k2, weight):
    """The formulas of the docstring, with sets and loops."""
    z = unit(queries if gallery is None else np.concatenate([queries, gallery]))
    n, first = len(z), 0 if gallery is None else len(queries)
    d = [[1 - product(z[i], z[j]) for j in range(n)] for i in range(n)]

    def nearest(p, k):
        others = sorted((np.float32(d[p][j]), j) for j in range(n) if j != p)
        return [p, *(j for _, j in others[:k])]

    def reciprocal(p, k):
        return {g for g in nearest(p, k) if p in nearest(g, k)}

    encoded = np.zeros((n, n))
    for p in range(n):
        members = reciprocal(p, k1)
        more = set(members)
        for g in members:
            half = reciprocal(g, round(k1 / 2))
            if 3 * len(members & half) >= 2 * len(half):
                more |= half
        for g in more:
            encoded[p, g] = math.exp(-d[p][g])
    means = [np.mean([encoded[g] for g in nearest(p, k2 - 1)], axis=0) for p in range(n)]
    found = np.zeros((len(queries), n - first))
    for p in range(len(queries)):
        for g in range(first, n):
            jaccard = (
                1 - np.minimum(means[p], means[g]).sum() / np.maximum(means[p], means[g]).sum()
            )
            found[p, g - first] = (1 - weight) * jaccard + weight * d[p][g]
    return found


@pytest.mark.parametrize(("k", "alpha"), [(1, 3.0), (4, 0.0), (40, 1.5)])
def test_expansions_match_a_loop(k, alpha):
    q, c = unit(QUERIES), unit(ITEMS)
    expected = [naive_expansion(each, c, k, alpha) for each in q]
    found = expand_queries(QUERIES, ITEMS, k, alpha)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)
    rows = range(len(c))
    others = [np.delete(c, j, axis=0) for j in rows]
    expected = [naive_expansion(c[j], others[j], k, alpha) for j in rows]
    np.testing.assert_allclose(augment_items(ITEMS, k, alpha), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("k1", "k2", "weight"), [(4, 3, 0.3), (6, 1, 0.0), (7, 8, 0.5), (60, 6, 0.3), (3, 2, 1.0)]
)
@pytest.mark.parametrize("gallery", [None, ITEMS])
def test_k_reciprocal_distances_match_loops(k1, k2, weight, gallery):
    queries = ITEMS if gallery is None else QUERIES
    found = k_reciprocal_distances(queries, gallery, k1, k2, weight)
    assert found.dtype == np.float32
    expected = naive_reciprocal(queries, gallery, k1, k2, weight)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_blocks_do_not_change_the_distances(monkeypatch):
    rows = np.random.default_rng(1).normal(size=(150, 8))
    whole, expansion = k_reciprocal_distances(rows), augment_items(rows)
    monkeypatch.setattr(reranking, "BLOCK", 500)
    monkeypatch.setattr(reranking, "_PAIRS", 700)
    np.testing.assert_array_equal(k_reciprocal_distances(rows), whole)
    np.testing.assert_array_equal(augment_items(rows), expansion)


@pytest.mark.parametrize("build", [ExactIndex, build_index])
def test_a_search_with_rerank(build):
    ids = np.array([f"item {j}" for j in range(len(ITEMS))])
    index = build(ITEMS, ids=ids)
    expanded = functools.partial(expand_queries, k=3)
    found, scores = index.search(QUERIES, 5, rerank=expanded)
    expected, of_expected = index.search(expand_queries(QUERIES, ITEMS, k=3), 5)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(scores, of_expected, atol=1e-6)
    distances = k_reciprocal_distances(QUERIES, ITEMS)
    found, scores = index.search(QUERIES, 5, rerank="k_reciprocal")
    order = np.argsort(distances, axis=1, kind="stable")[:, :5]
    np.testing.assert_array_equal(found, ids[order])
    np.testing.assert_array_equal(scores, np.take_along_axis(distances, order, 1))
    assert index.search(np.empty((0, 5)), 5, rerank="k_reciprocal")[0].shape == (0, 5)
    allowed = [2, 5, 9, 20]
    for rerank, distance in (("expand_queries", None), ("k_reciprocal", "yes")):
        found, _ = index.search(QUERIES, 9, allowed=ids[allowed], rerank=rerank)
        if distance:
            nearness = -k_reciprocal_distances(QUERIES, ITEMS[allowed])
        else:
            nearness = expand_queries(QUERIES, ITEMS[allowed]) @ unit(ITEMS[allowed]).T
        order = np.argsort(-nearness, axis=1, kind="stable")
        np.testing.assert_array_equal(found, ids[allowed][order])


def test_collapsed_and_single_rows():
    same = np.ones((30, 3))
    np.testing.assert_allclose(k_reciprocal_distances(same, same)[:, :1], 0, atol=0.5)
    assert np.isfinite(k_reciprocal_distances(np.zeros((4, 3)))).all()
    np.testing.assert_allclose(k_reciprocal_distances(np.ones((1, 3))), [[0]], atol=1e-6)
    np.testing.assert_allclose(augment_items([[3.0, 4.0]]), [[0.6, 0.8]], atol=1e-6)
    assert expand_queries(np.empty((0, 2)), [[1.0, 0.0]]).shape == (0, 2)


def test_bad_values():
    index = ExactIndex(ITEMS)
    for rerank in ("augment_items", augment_items):
        with pytest.raises(ValueError, match=r"rerank must be .*build_index\(augment_items"):
            index.search(QUERIES, 2, rerank=rerank)
    for rerank in ("k_reciprocical", 3, np.sort, functools.partial(expand_queries, ITEMS)):
        with pytest.raises(ValueError, match="rerank must be None, one of 'expand_queries'"):
            index.search(QUERIES, 2, rerank=rerank)
    # A misspelled argument, and an argument that the search sets.
    for function, given in (
        (expand_queries, {"kk": 3}),
        (k_reciprocal_distances, {"k1": 3, "gallery": QUERIES}),
    ):
        with pytest.raises(ValueError, match="rerank must be a functools.partial that sets only k"):
            index.search(QUERIES, 2, rerank=functools.partial(function, **given))
    with pytest.raises(ValueError, match="rerank must be None for metric.*cosine"):
        ExactIndex(ITEMS, "l2").search(QUERIES, 2, rerank="expand_queries")
    with pytest.raises(ValueError, match="k must be .* got 0"):
        index.search(QUERIES, 2, rerank=functools.partial(expand_queries, k=0))
    for arguments, named in (
        ({"k1": 0}, "k1"), ({"k1": 3, "k2": 5}, "k2"), ({"weight": 1.2}, "weight"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"{named} must be"):
            k_reciprocal_distances(QUERIES, ITEMS, **arguments)
    with pytest.raises(ValueError, match="alpha must be .* got -1"):
        augment_items(ITEMS, alpha=-1)
    with pytest.raises(ValueError, match="items must be rows of 5 dimensions"):
        expand_queries(QUERIES, ITEMS[:, :4])
    with pytest.raises(ValueError, match="items must be finite.* NaN"):
        augment_items(np.full((3, 2), np.nan))
    with pytest.raises(ValueError, match=r"gallery must have at most 50,000 rows.* got 50,001"):
        k_reciprocal_distances(QUERIES[:, :1], np.ones((50_001, 1)))
