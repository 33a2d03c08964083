"""Copies of an image: equal rows stay equal, at distance 0, at any position in a batch."""

import keras
import numpy as np
import oracles
import pytest
from backend import compiled, value_and_gradient
from keras import ops

from keras_dml import losses
from keras_dml._pairwise.pairs import normalize
from keras_dml.losses import Pairs
from keras_dml.models import UnitLength

pytestmark = pytest.mark.any_backend

# Vectorized code ends within these batches: one or two rows after a multiple of 16 or 32.
SIZES = (5, 17, 33)


def xla(function):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("TensorFlow's XLA")
    import tensorflow as tf

    return tf.function(function, jit_compile=True)


def eager(function):
    return function


modes = pytest.mark.parametrize(
    "mode", [eager, compiled, pytest.param(xla, marks=pytest.mark.slow)]
)


def with_copies(size, dimensions, seed=0):
    """Return random rows, about two thirds of which are copies of one row."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(size, dimensions))
    copies = rng.random(size) < 0.7
    z[copies] = rng.normal(size=dimensions)
    return z.astype("float32"), copies


@modes
@pytest.mark.parametrize("dimensions", [7, 64])
def test_equal_rows_are_normalized_to_equal_rows(mode, dimensions):
    normalized = mode(lambda x: UnitLength()(x))
    for size in SIZES:
        z, copies = with_copies(size, dimensions, seed=size)
        rows = ops.convert_to_numpy(normalized(ops.convert_to_tensor(z)))
        exact = oracles.unit(z.astype("float64"))
        np.testing.assert_allclose(rows, exact, atol=1e-6)
        np.testing.assert_array_equal(rows[copies], np.tile(rows[copies][:1], (copies.sum(), 1)))


@modes
def test_a_huge_row_does_not_change_other_rows(mode):
    z, _ = with_copies(17, 64)
    rows = ops.convert_to_numpy(mode(normalize)(ops.convert_to_tensor(z)))
    z[3] *= 1e25
    beside = ops.convert_to_numpy(mode(normalize)(ops.convert_to_tensor(z)))
    np.testing.assert_array_equal(np.delete(beside, 3, axis=0), np.delete(rows, 3, axis=0))


@modes
def test_copies_are_at_distance_0(mode, offset=100.0):
    def distances(z):
        anchors = normalize(z)
        return Pairs.of_batch(ops.arange(z.shape[0]), anchors).squared_distances()

    for size in SIZES:
        z, copies = with_copies(size, 64, seed=size)
        found = ops.convert_to_numpy(mode(distances)(ops.convert_to_tensor(z + offset)))
        assert (found[copies][:, copies] == 0).all()
        assert (found[~copies][:, copies] > 0).all()


@pytest.mark.parametrize("name", ["triplet", "margin"])
def test_a_collapsed_batch_has_no_gradient(name):
    z = np.tile(np.random.default_rng(0).normal(size=(1, 64)), (33, 1))
    _, gradient = value_and_gradient(losses.get(name), np.arange(33) // 2, z, "float32")
    assert (gradient == 0).all()


@pytest.mark.parametrize("name", ["triplet", "lifted_structure", "margin", "quadruplet"])
def test_the_gradient_of_a_batch_with_copies_matches_float64(name):
    rng = np.random.default_rng(0)
    z, ids = rng.normal(size=(33, 64)).astype("float32"), np.arange(33) // 4
    z[[5, 14, 18, 31, 32]] = z[[4, 4, 17, 30, 30]]
    _, gradient = value_and_gradient(losses.get(name), ids, z, "float32")
    _, exact = value_and_gradient(losses.get(name, dtype="float64"), ids, z)
    np.testing.assert_allclose(gradient, exact, atol=1e-4 * np.abs(exact).max())
