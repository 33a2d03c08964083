"""Losses on a GPU that rounds products to TF32, simulated by rounded factors on a CPU."""

import keras
import numpy as np
import pytest
from backend import value_and_gradient

from keras_dml import losses

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="only TensorFlow's products are in float64"
)
tf = pytest.importorskip("tensorflow")

RNG = np.random.default_rng(0)
# Groups of close embeddings, whose squared distances are small differences of products.
CENTERS = RNG.normal(size=(4, 1, 64))
EMBEDDINGS = (CENTERS + 0.03 * RNG.normal(size=(4, 6, 64))).reshape(24, 64)
LABELS = np.arange(24) // 3


def tf32(x):
    """Round float32 numbers to the nearest number of 11 significant bits."""
    if x.dtype != tf.float32:
        return x
    bits = tf.bitcast(x, tf.int32) + (1 << 12)
    return tf.bitcast(tf.bitwise.bitwise_and(bits, -(1 << 13)), tf.float32)


@tf.custom_gradient
def on_gpu(x, y):
    """Return the simulated product, whose gradients are simulated products, too."""

    def gradient(upstream):
        of_x = tf.matmul(tf32(upstream), tf32(y), transpose_b=True)
        return of_x, tf.matmul(tf32(x), tf32(upstream), transpose_a=True)

    return tf.matmul(tf32(x), tf32(y)), gradient


@pytest.mark.parametrize("name", ["contrastive", "ice", "spce"])
def test_a_loss_is_as_exact_as_without_tf32(monkeypatch, name):
    value, gradient = value_and_gradient(losses.get(name, dtype="float64"), LABELS, EMBEDDINGS)

    def error():
        one, of_one = value_and_gradient(losses.get(name), LABELS, EMBEDDINGS, "float32")
        of_gradient = np.linalg.norm(of_one - gradient) / np.linalg.norm(gradient)
        return max(abs(one - value) / abs(value), of_gradient)

    without = error()
    monkeypatch.setattr(keras.ops, "matmul", on_gpu)
    assert error() > 30 * without
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    assert error() < max(2 * without, 1e-6)
