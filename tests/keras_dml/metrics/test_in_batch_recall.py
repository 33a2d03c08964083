"""Recall within each batch in `compile`, against a loop."""

import keras
import numpy as np
import pytest
from batches import functional

from keras_dml import losses, relations
from keras_dml._common.errors import ArgumentError
from keras_dml.metrics import InBatchRecall

pytestmark = pytest.mark.any_backend


def by_loop(ids, z, k):
    """Return the recall of images that have a positive, with ties in the order of the batch."""
    z = z / np.linalg.norm(z, axis=1, keepdims=True)
    hits = []
    for i in range(len(ids)):
        others = [j for j in range(len(ids)) if j != i]
        if not any(ids[j] == ids[i] for j in others):
            continue
        others.sort(key=lambda j: -np.float32(z[i] @ z[j]))
        hits.append(any(ids[j] == ids[i] for j in others[:k]))
    return hits


@pytest.mark.parametrize("k", [1, 3, 50])
def test_the_recall_of_several_batches_matches_a_loop(k):
    metric, expected = InBatchRecall(k), []
    for seed in range(3):
        random = np.random.default_rng(seed)
        ids, z = random.integers(0, 6, 20), random.normal(size=(20, 4)).astype("float32")
        metric.update_state(ids, z)
        expected += by_loop(ids, z, k)
    assert metric.name == f"in_batch_recall_at_{k}"
    np.testing.assert_allclose(float(metric.result()), np.mean(expected), rtol=1e-6)


def test_equal_similarities_rank_in_the_order_of_the_batch():
    for ids, expected in ([0, 1, 0], 0.5), ([0, 0, 1], 1.0):
        metric = InBatchRecall()
        metric.update_state(np.array(ids), np.ones((3, 2), "float32"))
        assert float(metric.result()) == expected == np.mean(by_loop(ids, np.ones((3, 2)), 1))


def test_embeddings_of_nan_are_no_hits():
    metric = InBatchRecall()
    metric.update_state(np.array([0, 0, 1, 1]), np.full((4, 2), np.nan, "float32"))
    assert float(metric.result()) == 0.0


def test_weights_and_images_without_a_positive():
    z = np.array([[4, 0], [4, 1], [0, 4], [1, 4], [1, 0]], "float32")
    ids = np.array([0, 1, 1, 1, 2])
    assert by_loop(ids, z, 1) == [False, True, True]
    metric = InBatchRecall()
    metric.update_state(ids, z, np.array([1, 2, 1, 1, 9], "float32"))
    assert float(metric.result()) == 0.5
    metric.reset_state()
    metric.update_state(np.arange(5), z)
    assert float(metric.result()) == 0.0


def test_fit_records_it_and_its_configuration_restores_it():
    random = np.random.default_rng(0)
    x, ids = random.normal(size=(12, 3)).astype("float32"), np.arange(12) // 3
    model = functional((3,), keras.layers.Dense(2))
    model.compile("sgd", losses.TripletLoss(), metrics=[InBatchRecall(2, name="r2")])
    history = model.fit(x, ids, batch_size=6, epochs=2, shuffle=False, verbose=0).history
    assert all(0 < value <= 1 for value in history["r2"])
    again = InBatchRecall.from_config(InBatchRecall(2, name="r2").get_config())
    assert (again.k, again.name) == (2, "r2")


def test_a_relation_says_which_images_match():
    metric = InBatchRecall(relation=relations.SharesLabel())
    tags = np.array([[1, 0, 1], [0, 0, 1], [0, 1, 0], [1, 1, 0]])
    metric.update_state(tags, np.array([[1, 0], [0, 1], [0, 1], [1, 0]], "float32"))
    assert float(metric.result()) == 0.5


@pytest.mark.parametrize("k", [0, 1.5, "1"])
def test_an_invalid_k_is_refused(k):
    with pytest.raises(ArgumentError, match="k must be"):
        InBatchRecall(k)
