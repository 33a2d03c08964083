"""A batch without images has a loss of 0 and no gradient, even if a graph learns its size late.

Also tests a batch of a single image in a graph with known batch size.
"""

import keras
import numpy as np
import pytest
import tiers
from backend import parts, value_and_gradient
from loss_cases import DEFAULTS, each

from keras_dml import losses, models

pytestmark = pytest.mark.any_backend

NO_IDS, NOTHING = np.zeros(0, int), np.zeros((0, 4), "float32")


@each(DEFAULTS)
def test_loss_and_gradient(case):
    loss = losses.get(case.name)
    prefixes = [losses.MatryoshkaLoss(loss, [2, 4])] if loss.kind == "pairs" else []
    for one in (loss, *prefixes):
        value, gradient = value_and_gradient(one, NO_IDS, NOTHING, "float32")
        assert (value, gradient.shape) == (0, (0, 4))
        assert [part.shape for part in parts(one, NO_IDS, NOTHING)] == [(0,), (0,)]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's graphs")
@each(DEFAULTS, {"triplet"}, tiers.THOROUGH)
def test_no_image_and_one_image_in_a_graph(case):
    """TensorFlow's graph optimizer made some of these graphs invalid, or lost the gradient."""
    import tensorflow as tf

    loss = losses.get(case.name)

    def graph(size):
        specs = tf.TensorSpec([size], tf.int64), tf.TensorSpec([size, 4], tf.float32)
        return tf.function(lambda ids, z: value_and_slope(loss, ids, z), input_signature=specs)

    value, gradient = graph(None)(NO_IDS, NOTHING)
    assert (float(value), tuple(gradient.shape)) == (0, (0, 4))
    longest = 0.6 if loss.kind == "proxies" else 3.0  # cosines are at most 1
    one = np.array([2]), np.array([[1.0, -2.0, 0.5, 3.0]], "float32") * np.float32(longest / 3)
    expected, slope = value_and_gradient(loss, *one, "float32")
    value, gradient = graph(1)(*one)
    # PCE's value is the difference of two numbers around 1e4.
    assert float(value) == pytest.approx(expected, abs=2e-3)
    np.testing.assert_allclose(gradient.numpy(), slope, rtol=1e-5, atol=1e-6)


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
