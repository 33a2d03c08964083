"""A batch without images has a loss of 0 and no gradient, even if a graph learns its size late.

Also tests a batch of a single image in a graph with known batch size.
"""

import keras
import numpy as np
import pytest
from backend import parts, value_and_gradient
from loss_cases import CASES

from keras_dml import losses, models

pytestmark = pytest.mark.any_backend

DEFAULTS = [case for case in CASES if not case.arguments]
NO_IDS, NOTHING = np.zeros(0, int), np.zeros((0, 4), "float32")


def without_prefixes(loss):
    return [loss]


def with_prefixes(loss):
    return [losses.MatryoshkaLoss(loss, [2, 4])] if loss.kind == "pairs" else []


@pytest.mark.parametrize("wrapped", [without_prefixes, with_prefixes])
@pytest.mark.parametrize("case", DEFAULTS, ids=str)
def test_loss_and_gradient(case, wrapped):
    for loss in wrapped(losses.get(case.name)):
        value, gradient = value_and_gradient(loss, NO_IDS, NOTHING, "float32")
        assert (value, gradient.shape) == (0, (0, 4))
        assert [part.shape for part in parts(loss, NO_IDS, NOTHING)] == [(0,), (0,)]


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(
    "name",
    ["supcon", "fastap", "quadruplet",
     *[case.name for case in DEFAULTS if case.name not in ("supcon", "fastap", "quadruplet")]],
)  # fmt: skip
def test_in_a_graph_that_does_not_know_the_size(name):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("sizes are known")
    import tensorflow as tf

    loss = losses.get(name)
    specs = tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 4], tf.float32)
    graph = tf.function(lambda ids, z: value_and_slope(loss, ids, z), input_signature=specs)
    value, gradient = graph(NO_IDS, NOTHING)
    assert (float(value), tuple(gradient.shape)) == (0, (0, 4))


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(
    "name",
    ["triplet", "fastap", "quadruplet",
     *[case.name for case in DEFAULTS if case.name not in ("triplet", "fastap", "quadruplet")]],
)  # fmt: skip
def test_one_image_in_a_graph_that_knows_the_size(name):
    """TensorFlow's graph optimizer made some of these graphs invalid, or lost the gradient."""
    if keras.backend.backend() != "tensorflow":
        pytest.skip("another compiler's graphs")
    import tensorflow as tf

    loss, one = losses.get(name), (np.array([2]), np.array([[1.0, -2.0, 0.5, 3.0]], "float32"))
    specs = tf.TensorSpec([1], tf.int64), tf.TensorSpec([1, 4], tf.float32)
    graph = tf.function(lambda ids, z: value_and_slope(loss, ids, z), input_signature=specs)
    expected, slope = value_and_gradient(loss, *one, "float32")
    value, gradient = graph(*one)
    # PCE's value is the difference of two numbers around 1e4.
    assert float(value) == pytest.approx(expected, abs=2e-3)
    np.testing.assert_allclose(gradient.numpy(), slope, atol=1e-6)


def value_and_slope(loss, ids, z):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(z)
        value = loss(ids, z)
    return value, tape.gradient(value, z, unconnected_gradients="zero")


def small_net():
    inputs = keras.Input((4,))
    return keras.Model(inputs, keras.layers.Dense(3)(inputs))


def test_rankmi_and_the_wrappers():
    for model, loss in (
        (models.RankMI(small_net()), None),
        (models.CrossBatchMemory(small_net(), 8, start_step=0), losses.SupConLoss()),
        (models.CachedGradients(small_net(), 2), losses.SupConLoss()),
    ):
        model.compile("sgd", **({} if loss is None else {"loss": loss}))
        before = [keras.ops.convert_to_numpy(each) for each in model.trainable_variables]
        for _ in range(2):  # RankMI alternates
            logs = model.train_on_batch(NOTHING, NO_IDS, return_dict=True)
        logs |= model.test_on_batch(NOTHING, NO_IDS, return_dict=True)
        assert np.isfinite([float(value) for value in logs.values()]).all(), type(model)
        for now, was in zip(model.trainable_variables, before):
            np.testing.assert_array_equal(keras.ops.convert_to_numpy(now), was)
