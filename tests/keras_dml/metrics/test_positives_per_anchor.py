"""The number of positives of an anchor in `fit`, and the warning for epochs without positives."""

import warnings

import keras
import numpy as np
import pytest
import tiers
from batches import functional

from keras_dml._common.errors import ArgumentError
from keras_dml.losses import MultiSimilarityLoss, TripletLoss
from keras_dml.metrics import LossPart, PositivesPerAnchor

pytestmark = pytest.mark.any_backend


def fitted(ids, batch_size, epochs=1, metrics=(), **how):
    how = how or {"run_eagerly": keras.backend.backend() != "jax"}
    model = functional((3,), keras.layers.Dense(2))
    model.compile("sgd", TripletLoss(), metrics=[*metrics, PositivesPerAnchor()], **how)
    x = np.random.default_rng(0).normal(size=(len(ids), 3)).astype("float32")
    given = {"batch_size": batch_size, "epochs": epochs, "shuffle": False, "verbose": 0}
    return model.fit(x, ids, **given).history["positives_per_anchor"]


@pytest.mark.parametrize("ids", [[0, 1, 0, 0, 2, 2, 1, 3], [2**31 - 1, 2**31 - 2] * 4])
@tiers.parametrize("batch_size", [3, 8], [3])
@pytest.mark.filterwarnings("error::UserWarning", "ignore:A batch had no two images")
def test_the_mean_over_anchors_and_batches_matches_a_loop(ids, batch_size):
    expected = [
        sum(other == anchor for other in batch) - 1
        for start in range(0, len(ids), batch_size)
        for batch in [ids[start : start + batch_size]]
        for anchor in batch
    ]
    found = fitted(np.array(ids, "int32"), batch_size, epochs=2)
    np.testing.assert_allclose(found, [np.mean(expected)] * 2, rtol=1e-6)


@pytest.mark.filterwarnings("error::UserWarning")
def test_placeholder_class_ids_at_build_time_do_not_warn():
    """On PyTorch, Keras calls metrics with ones in place of class ids to find their shapes."""
    part = LossPart(MultiSimilarityLoss(), "tightness")
    assert fitted(np.array([0, 1, 0, 0, 2, 2, 1, 3]), 4, metrics=[part]) == [1.0]


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_an_epoch_without_positives_warns_once(jit_compile):
    with pytest.warns(UserWarning, match="no image had another one of its class") as said:
        assert fitted(np.arange(12), 4, epochs=3, jit_compile=jit_compile) == [0, 0, 0]
    assert len([each for each in said if "no image had another" in str(each.message)]) == 1


@pytest.mark.parametrize("batch_size", [4, 5])
def test_an_epoch_of_single_class_batches_warns_once(batch_size):
    ids = np.repeat(np.arange(3), 4)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        fitted(ids, batch_size, epochs=2)
    told = [each for each in said if "of one class alone" in str(each.message)]
    assert len(told) == (batch_size == 4)


def test_a_reset_forgets_negatives():
    metric, z = PositivesPerAnchor(), np.zeros((2, 1))
    metric.update_state([0, 1], z)
    metric.reset_state()
    metric.update_state([0, 0], z)
    with pytest.warns(UserWarning, match="of one class alone"):
        assert float(metric.result()) == 1.0


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="other backends keep 64 bits")
def test_class_ids_that_merge_on_jax_warn():
    import jax

    if not hasattr(jax, "enable_x64"):
        pytest.skip("needs JAX 0.8")
    with jax.enable_x64(False), pytest.warns(UserWarning, match="class ids beyond int32"):
        fitted(np.arange(8) * 2**40, 4)


def test_embeddings_and_weights_do_not_matter():
    metric = PositivesPerAnchor()
    metric.update_state([5, 5, 5, 7], np.full((4, 2), np.nan), sample_weight=[0, 0, 0, 1])
    assert float(metric.result()) == 1.5


def test_class_ids_with_a_wrong_shape_are_refused():
    with pytest.raises(ArgumentError, match=r"y_true must .*\[n, 1\].*\(2, 3\)"):
        PositivesPerAnchor().update_state(np.zeros((2, 3), int), np.zeros((2, 2)))
