"""ScaNN's tree: its parameters, its answers, and its recall."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tiers
from retrieval_sets import assert_same, clustered, needs_scann, recall_at_10

from keras_dml.retrieval import METRICS, ExactIndex, ScannIndex, TreeAH, load_index
from keras_dml.retrieval.scann_import import import_scann


def test_parameters_follow_from_the_number_of_items():
    assert TreeAH().for_items(19_999, 64) is None
    small, million = TreeAH().for_items(60_502, 512), TreeAH().for_items(1_000_000, 128)
    assert (small.num_leaves, million.num_leaves) == (245, 1000)
    assert (small.leaves_to_search, million.leaves_to_search) == (162, 100)
    assert (small.reorder, million.reorder) == (100, 200)
    assert (small.training_sample, million.training_sample) == (60_502, 100_000)
    given = TreeAH(50, 7, 16, 4, 300, 2000, 0.5)
    assert given.for_items(5000, 64) == given
    capped = TreeAH(10, reorder=500, training_sample=500, leaves_to_search=10).for_items(40, 3)
    assert (capped.reorder, capped.training_sample, capped.leaves_to_search) == (40, 40, 10)
    assert TreeAH(target_recall=0.9).for_items(30_000, 3).leaves_to_search is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_leaves": 0}, {"leaves_to_search": 2.0}, {"reorder": True},
        {"projected_dimensions": -1}, {"training_sample": 0}, {"dimensions_per_block": None},
        {"anisotropic_threshold": 1.5}, {"target_recall": 95},
        {"leaves_to_search": 3, "target_recall": 0.9}, {"leaves_to_search": 6, "num_leaves": 5},
        {"soar_lambda": 0}, {"reorder_dtype": "int4"},
    ],
    ids=str,
)  # fmt: skip
def test_invalid_tree_parameters(arguments):
    name = next(iter(arguments))
    with pytest.raises(ValueError, match=f"{name}.* but got "):
        TreeAH(**arguments)


@needs_scann
@pytest.mark.parametrize(
    ("rows", "metric", "tree", "error", "message"),
    [
        (np.eye(40), "cosine", TreeAH(41), ValueError, "num_leaves .* got 41 for 40 items"),
        (np.eye(15), "cosine", TreeAH(2), ValueError, "at least 16.*for 15 items"),
        (np.eye(40), "cosine", TreeAH(2, projected_dimensions=41), ValueError, "at most 40"),
        (np.eye(40), "l2", TreeAH(2, projected_dimensions=4), ValueError, "None for metric='l2'"),
        (np.eye(40), "l2", TreeAH(2, soar_lambda=1), ValueError, "None for metric='l2', but got 1"),
        (np.eye(40), "cosine", "tree", TypeError, "tree must be None or a TreeAH"),
    ],
)
def test_invalid_items_of_a_tree(rows, metric, tree, error, message):
    with pytest.raises(error, match=message):
        ScannIndex(rows, metric, tree=tree)


@needs_scann
@tiers.parametrize("metric", METRICS, ["cosine"])
def test_the_tree_has_exact_scores_and_the_reported_recall(metric):
    embeddings = clustered()
    index = ScannIndex(embeddings, metric, tree=TreeAH(num_leaves=50, leaves_to_search=4))
    rows, scores = index.search(embeddings[:400], 9)
    every = ExactIndex(embeddings, metric).search(embeddings[:400], 3000)
    exact = np.empty((400, 3000), np.float32)
    np.put_along_axis(exact, every[0], every[1], 1)
    np.testing.assert_array_equal(scores, np.take_along_axis(exact, rows, 1))
    assert (np.diff(scores) * (1 if metric == "l2" else -1) >= 0).all()
    assert all(len(set(one)) == 9 for one in rows.tolist())
    # Measured on 1,000 of the 3,000 rows.
    assert index.measured_recall == pytest.approx(recall_at_10(index, embeddings), abs=0.02)
    assert 0.5 < index.measured_recall < 1


@needs_scann
@pytest.mark.parametrize("metric", METRICS)
def test_queries_with_too_few_items_in_their_leaves_are_searched_exactly(metric):
    embeddings = clustered(400)
    tree = TreeAH(num_leaves=20, leaves_to_search=1)
    ids = np.arange(400) * 2
    index = ScannIndex(embeddings, metric, ids, tree)
    assert_same(index, ExactIndex(embeddings, metric, ids), embeddings, 399)


@needs_scann
def test_target_recall_uses_the_fewest_leaves():
    embeddings = clustered()
    index = ScannIndex(embeddings, tree=TreeAH(num_leaves=50, target_recall=0.95))
    leaves = index.tree.leaves_to_search
    assert 1 < leaves < 50
    assert index.measured_recall >= 0.95
    # In the same tree, because two trainings differ slightly.
    index._tree.tree = dataclasses.replace(index.tree, leaves_to_search=leaves - 1)
    index._measure_recall(index._tree)
    assert index.measured_recall < 0.95


@needs_scann
def test_an_unreachable_recall_warns_and_reorder_grows_if_allowed(caplog):
    embeddings = np.random.default_rng(0).normal(size=(2000, 32))
    limited = TreeAH(num_leaves=10, reorder=12, dimensions_per_block=8, target_recall=0.99)
    index = ScannIndex(embeddings, tree=limited)
    assert "target_recall=0.99 is not reached: all 10 leaves with reorder=12" in caplog.text
    assert index.tree.leaves_to_search == 10 and index.measured_recall < 0.9
    caplog.clear()
    free = TreeAH(num_leaves=10, dimensions_per_block=8, target_recall=0.99)
    index = ScannIndex(embeddings, tree=free)
    assert not caplog.records
    assert index.tree.reorder > 100 and index.measured_recall >= 0.99


@needs_scann
def test_rows_in_few_dimensions_are_projected():
    embeddings = clustered()
    assert ScannIndex(embeddings, tree=TreeAH(20)).tree.projected_dimensions < 16
    noise = np.random.default_rng(0).normal(size=(500, 32))
    assert ScannIndex(noise, tree=TreeAH(20)).tree.projected_dimensions == 32
    assert ScannIndex(embeddings, "l2", tree=TreeAH(20)).tree.projected_dimensions == 32
    index = ScannIndex(embeddings, tree=TreeAH(20, 20, projected_dimensions=3, reorder=300))
    assert index.tree.projected_dimensions == 3 and index.measured_recall > 0.5
    # Far from the origin, the mean's direction has nearly all of the length.
    index = ScannIndex(noise + 20, tree=TreeAH(20, 20))
    assert index.tree.projected_dimensions == 32 and index.measured_recall > 0.9


@pytest.mark.slow
@needs_scann
@pytest.mark.parametrize("zeros", [0, 3])
def test_a_long_mean_is_subtracted(zeros, tmp_path):
    noise = np.random.default_rng(0).normal(size=(500, 32))
    rows = (noise + 20).astype(np.float32)
    rows[:zeros] = 0
    index = ScannIndex(rows, ids=np.arange(500) * 3, tree=TreeAH(20, 20))
    assert index.measured_recall > 0.97
    queries = np.concatenate([rows[::5], -rows[7:9], np.zeros((1, 32))])
    found, scores = index.search(queries, 10)
    exact, similarities = ExactIndex(rows, ids=np.arange(500) * 3).search(queries, 10)
    right = found == exact
    assert right[zeros:-3].mean() > 0.97
    np.testing.assert_array_equal(scores[right], similarities[right])

    module = index.serving_module()
    ids, served = module.search(tf.constant(queries, tf.float32), 10)
    np.testing.assert_allclose(served[:-3], scores[:-3], atol=1e-6)
    assert (ids == found)[zeros:-3].numpy().mean() > 0.98
    # A zero row is equally similar to all rows.
    np.testing.assert_allclose(served[-1], 0, atol=1e-6)

    index.save(tmp_path / "index")
    loaded = load_index(tmp_path / "index")
    assert_same(loaded, index, queries, 10)
    # The new rows surround the origin, so the mean is short again.
    loaded.add(more := np.random.default_rng(1).normal(size=(1000, 32)), np.arange(1000) * 3 + 1)
    assert (loaded.search(more, 1)[0][:, 0] == loaded.ids[500:]).mean() > 0.9
    loaded.save(tmp_path / "grown")
    assert not (tmp_path / "grown" / "searcher" / "dataset.npy").exists()
    assert (tmp_path / "index" / "searcher" / "dataset.npy").exists()


@needs_scann
@tiers.parametrize("metric", METRICS, ["cosine"])
def test_a_saved_tree_grows_without_retraining(metric, tmp_path, monkeypatch):
    embeddings = clustered()
    index = ScannIndex(embeddings, metric, tree=TreeAH(num_leaves=50, target_recall=0.9))
    index.save(tmp_path / "index")
    (tmp_path / "index").rename(tmp_path / "moved")
    with monkeypatch.context() as without_training:
        without_training.delattr(import_scann(), "builder")
        loaded = load_index(tmp_path / "moved")
        assert (loaded.tree, loaded.measured_recall) == (index.tree, index.measured_recall)
        assert_same(index, loaded, embeddings, 5)
        more = clustered(300, seed=5)
        loaded.add(more)
        rows, _ = loaded.search(more, 1)
        # Recall and loss depend on the random leaves: recall at least 0.49, and 0.82 to 0.9 in some
        # runs.
        assert (rows[:, 0] == np.arange(3000, 3300)).mean() > 0.3
        assert loaded.measured_recall > 0.7 and loaded.tree.training_sample == 3000
    loaded.rebalance()
    assert loaded.measured_recall >= 0.9 and loaded.tree.training_sample == 3300
    # More than twice the number of items at training time.
    loaded.add(clustered(3_400, seed=6))
    assert loaded.measured_recall >= 0.9 and loaded.tree.training_sample == 6700
