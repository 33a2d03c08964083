"""Search against loops: all items, allowed items, and prefixes."""

import numpy as np
import pytest
from retrieval_sets import assert_same, awkward_set, naive_search, needs_scann, recall_at_10

from keras_dml._files.manifest import Manifest
from keras_dml.retrieval import METRICS, ExactIndex, PrefixIndex, ScannIndex, TreeAH, load_index

INDEXES = [ExactIndex, pytest.param(ScannIndex, marks=needs_scann)]


@pytest.mark.parametrize("index_class", INDEXES)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("k", [1, 31, 80])
def test_search_agrees_with_a_naive_loop(index_class, metric, k):
    """Items include zeros, and more copies of a row than the search has spare candidates."""
    embeddings, _ = awkward_set()
    queries = np.concatenate([embeddings, awkward_set(1)[0][:20]])
    expected, expected_scores = naive_search(embeddings, queries, metric)
    index = index_class(embeddings, metric)
    embeddings[:] = 0  # the index has a copy of the caller's array
    rows, scores = index.search(queries, k)
    assert rows.dtype == np.int64 and scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected_scores[:, :k], rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(rows, expected[:, :k])


@pytest.mark.parametrize("index_class", INDEXES)
def test_equal_distances_of_unequal_rows_keep_row_order(index_class):
    # Points of a grid: many distances are equal although the rows differ.
    embeddings = np.random.default_rng(0).integers(-2, 3, size=(400, 4)).astype(np.float32)
    expected, _ = naive_search(embeddings, embeddings[:40], "l2")
    for k in (1, 10, 50):
        rows, _ = index_class(embeddings, "l2").search(embeddings[:40], k)
        np.testing.assert_array_equal(rows, expected[:, :k])


def clusters(count, copies, length, gap, d=24, seed=0):
    """Return near copies of a few long vectors, `gap` apart; every seventh is an exact copy."""
    generator = np.random.default_rng(seed)
    centers = generator.normal(size=(count, d))
    centers *= length / np.linalg.norm(centers, axis=1, keepdims=True)
    rows = np.repeat(centers, copies, axis=0)
    rows += generator.normal(size=rows.shape) * gap / np.sqrt(2 * d)
    rows[::7] = rows[3::7][: len(rows[::7])].repeat(2, axis=0)[: len(rows[::7])]
    return generator.permutation(rows.astype(np.float32))


@pytest.mark.parametrize(
    ("count", "copies", "length", "gap"),
    [
        (5, 20, 1100, 1.5e-4),
        (2, 60, 1e6, 0.1),
        (30, 5, 1e-18, 1e-25),
        (3, 40, 1e15, 1e8),
        # Products beyond float32.
        (10, 1, 1e25, 1e24),
        (60, 1, 1e19, 1e18),
    ],
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
    nearness = "dot" if metric == "cosine" else metric  # these rows are normalized
    expected, expected_scores = naive_search(rows_of_index, rows_of_index, nearness)
    expected_some, _ = naive_search(rows_of_index[some], rows_of_index, nearness)
    for k in (1, 2, 10, copies + 3):
        rows, scores = index.search(embeddings, k)
        np.testing.assert_array_equal(rows, expected[:, :k])
        np.testing.assert_array_equal(scores, expected_scores[:, :k])
        rows, _ = index.search(embeddings, k, allowed=some)
        np.testing.assert_array_equal(rows, some[expected_some[:, :k]])


@pytest.mark.parametrize(
    ("embeddings", "metric", "message"),
    [
        (np.zeros((3, 2)), "dot", r"metric must be one of 'cosine', 'l2', but got 'dot'"),
        (np.zeros(3), "l2", r"embeddings must be .*\[n, d\].*\(3,\)"),
        (np.zeros((3, 0)), "l2", r"embeddings must be .*\(3, 0\)"),
        (np.zeros((0, 3)), "l2", r"at least one row.*\(0, 3\)"),
        (np.full((2, 2), 1e39), "l2", "NaN or infinity in 2 of 2 rows"),
        ([["a", "b"]], "l2", "embeddings must be an array of numbers"),
        ([[0, 1], [0, np.nan], [-np.inf, 0]], "cosine", r"in 2 of 3 rows \(row numbers 1, 2\)"),
        (np.full((8, 2), np.nan), "l2", r"8 of 8 .*numbers 0, 1, 2, 3, 4, …\)"),
    ],
)
def test_invalid_items(embeddings, metric, message):
    with pytest.raises(ValueError, match=message):
        ExactIndex(embeddings, metric)


@pytest.mark.parametrize(
    ("queries", "k", "message"),
    [
        (np.zeros((1, 2)), 0, "k must be a whole number from 1 to 9, but got 0"),
        (np.zeros((1, 2)), 10, "k must be .* but got 10"),
        (np.zeros((1, 3)), 1, r"queries must be rows of 2 dimensions.*\(1, 3\)"),
        (np.zeros(2), 1, r"queries must be .*\[n, d\]"),
        ([[0, 1], [np.inf, 0]], 1, r"queries must be finite.*1 of 2 rows \(row numbers 1\)"),
    ],
)
def test_invalid_queries(queries, k, message):
    with pytest.raises(ValueError, match=message):
        ExactIndex(np.zeros((9, 2)), "l2").search(queries, k)


def tree(items, metric, ids=None):
    return ScannIndex(items, metric, ids, TreeAH(num_leaves=4, leaves_to_search=1))


def prefix(items, metric, ids=None):
    return PrefixIndex(items, metric, ids, length=2, candidates=3)


KINDS = [
    ExactIndex,
    prefix,
    pytest.param(ScannIndex, marks=needs_scann),
    pytest.param(tree, marks=needs_scann),
]


@pytest.mark.parametrize("build", KINDS)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("ids", [np.arange(80), [f"ü{row}" for row in range(80)]], ids=["", "text"])
def test_allowed_items_are_found_as_among_all_items(build, metric, ids):
    """Includes copies and zeros, and subsets of one row, a few, or most, by mask and by ids."""
    items, _ = awkward_set()
    index, ids = build(items, metric, ids), np.array(ids)
    queries = np.concatenate([items[:12], np.random.default_rng(1).normal(size=(5, 6))])
    everything = ExactIndex(items, metric, ids).search(queries, 80)
    for rows in ([50], [79, 30, 31, 2, 5], range(40, 80), range(1, 80)):
        mask = np.isin(np.arange(80), list(rows))
        kept = np.isin(everything[0], ids[rows])
        for allowed in (mask, [*ids[rows], *ids[rows]]):
            for found, every in zip(index.search(queries, 4, allowed=allowed), everything):
                expected = every[kept].reshape(len(queries), len(rows))[:, :4]
                np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("build", KINDS)
def test_no_item_and_all_items_allowed(build):
    items, _ = awkward_set()
    index = build(items, "cosine")
    for nobody in ([], np.array([], np.int64), np.zeros(80, bool)):
        found, scores = index.search(items[:3], 5, allowed=nobody)
        assert found.shape == scores.shape == (3, 0)
        assert found.dtype == np.int64 and scores.dtype == np.float32
    np.testing.assert_equal(index.search(items, 5, np.ones(80, bool)), index.search(items, 5))
    assert index.search(np.empty((0, 6)), 5, [1])[0].shape == (0, 1)


@pytest.mark.parametrize(
    ("allowed", "message"),
    [
        (np.ones(79, bool), r"one bool for each of the 80 items, but got .*\(79,\)"),
        ([3, 80, -1], "allowed must be ids of items, whole numbers, but got 2 .*: 80, -1"),
        ([2**70], "but got 1 that no item has"),
        (["3"], "allowed must be ids of items, whole numbers, but got "),
        ([[1]], "whole numbers, but got "),
        ([[1], [1, 2]], "allowed must be an array"),
        ([True, 3], "whole numbers"),
    ],
)
def test_bad_allowed_items(allowed, message):
    items, _ = awkward_set()
    with pytest.raises(ValueError, match=message):
        ExactIndex(items).search(items, 3, allowed=allowed)
    with pytest.raises(ValueError):
        ExactIndex(items).embeddings_of(allowed)


def rows(n=120, d=12, seed=0):
    """Rows whose first numbers matter most, as with a Matryoshka loss; some are far from 0."""
    scale = 0.6 ** np.arange(d)
    return np.random.default_rng(seed).normal(size=(n, d)) * scale + (np.arange(d) == 1)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("k", "candidates"), [(1, 5), (5, 20), (9, 3), (3, 500)])
def test_the_nearest_of_the_candidates_by_prefixes(metric, k, candidates):
    items, queries = rows(), rows(20, seed=1)
    items[3], items[4, :3] = 0, 0
    queries[0] = 0  # all items are equally near by "cosine"
    index = PrefixIndex(items, metric, length=3, candidates=candidates)
    near, _ = naive_search(items[:, :3], queries[:, :3], metric)
    exact, exact_scores = ExactIndex(items, metric).search(queries, len(items))
    for number, (found, scores) in enumerate(zip(*index.search(queries, k))):
        kept = np.isin(exact[number], near[number, : max(k, candidates)])
        np.testing.assert_array_equal(found, exact[number][kept][:k])
        np.testing.assert_array_equal(scores, exact_scores[number][kept][:k])
    assert (index.search(queries, k)[0] != exact[:, :k]).any() == (candidates < 500)


def test_recall_of_prefixes_is_measured_and_grows_with_the_candidates():
    items = rows(400)
    few, many, all_of_them = (
        PrefixIndex(items, length=2, candidates=number).measured_recall for number in (5, 60, 400)
    )
    assert few < many < all_of_them == 1.0
    index = PrefixIndex(items, length=2, candidates=60)
    assert many == pytest.approx(recall_at_10(index, items), abs=1e-9)
    assert PrefixIndex(items[:1], length=2).measured_recall == 1.0


def test_a_prefix_index_is_saved_with_its_parameters(tmp_path):
    index = PrefixIndex(rows(), length=2, candidates=8)
    index.save(tmp_path / "index")
    loaded = load_index(tmp_path / "index")
    assert (loaded.length, loaded.candidates) == (2, 8)
    assert_same(loaded, index, rows(6, seed=1), 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 12}, "length must be less than the 12 dimensions.* but got 12"),
        ({"length": 0}, "length must be .* but got 0"),
        ({"length": 2, "candidates": 0}, "candidates must be .* but got 0"),
    ],
)
def test_bad_arguments_of_a_prefix_index(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        PrefixIndex(rows(), **arguments)


def test_a_strangers_index_runs_no_code(tmp_path):
    """The checksums fit, because a stranger can write them, too."""
    ExactIndex(np.eye(3, dtype="float32"), ids=["a", "b", "c"]).save(tmp_path / "index")
    ids = np.array([Trap(tmp_path / "called"), 2, 3], object)
    np.save(tmp_path / "index" / "ids.npy", ids, allow_pickle=True)
    Manifest(tmp_path / "index").record(["ids.npy"])
    with pytest.raises(ValueError, match="path must be an undamaged index.*allow_pickle"):
        load_index(tmp_path / "index")
    assert not (tmp_path / "called").exists()


class Trap:
    """An object whose pickle creates a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))
