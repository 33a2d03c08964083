"""Close and coincident pairs, where a single matrix product has no digits left."""

import keras
import numpy as np
import oracles
import pytest
from backend import compiled, eager, parts, value_and_gradient
from keras import ops
from loss_cases import CASES, each

from keras_dml import losses
from keras_dml._pairwise.close_pairs import squared_distances
from keras_dml._pairwise.pairs import normalize, safe_sqrt
from keras_dml.layers import UnitLength
from keras_dml.losses import Pairs

pytestmark = pytest.mark.any_backend

RNG = np.random.default_rng(0)
SPREAD = RNG.normal(size=(24, 8))
CLUSTERS = RNG.normal(size=(4, 8))[np.arange(24) % 4]


def near_twins():
    z = SPREAD.copy()
    z[1], z[3] = z[0] * (1 + 1e-5), z[2] + 1e-6 * z[7]
    return z


def collapsed_but_for_one():
    z = 1 + 1e-4 * SPREAD
    z[0] = -100
    return z


BATCHES = {
    "at the origin": SPREAD,
    "offset 1000": SPREAD + 1000,
    "near twins": near_twins(),
    "tight clusters, offset 100": CLUSTERS + 1e-4 * SPREAD + 100,
    "collapsed but for one": collapsed_but_for_one(),
    "twins": CLUSTERS,
    "one image": SPREAD[:1],
}


def by_differences(z, weights):
    """Compute float64 distances and the gradient of their weighted sum, 0 for coincident pairs."""
    differences = z[:, None].astype("float64") - z
    distances = np.linalg.norm(differences, axis=-1)
    pulls = weights / np.where(distances > 0, distances, np.inf)
    return distances, ((pulls + pulls.T)[..., None] * differences).sum(axis=1)


def weighted_sum(weights, z, candidates=lambda z: z):
    weights = ops.convert_to_tensor(weights)
    return ops.sum(weights * safe_sqrt(squared_distances(z, candidates(z))))


def of_two_sets(weights, z):
    # Equal numbers in different tensors, like anchors and gathered candidates.
    return weighted_sum(weights, z, lambda z: z * 1.0)


@pytest.mark.parametrize("batch", BATCHES)
def test_values_and_gradients_in_float32(batch):
    z = BATCHES[batch].astype("float32")
    distances, gradient = by_differences(z, weights := RNG.normal(size=(len(z), len(z))))
    ours = np.asarray(ops.sqrt(squared_distances(tensor := ops.convert_to_tensor(z), tensor)))
    np.testing.assert_allclose(ours, distances, rtol=1e-5, atol=0)
    for function in (weighted_sum, of_two_sets):
        _, theirs = value_and_gradient(function, weights.astype("float32"), z, "float32")
        np.testing.assert_allclose(theirs, gradient, atol=2e-6 * np.abs(gradient).max(initial=1e-9))
    value = float(compiled(weighted_sum)(np.ones(distances.shape, "float32"), tensor))
    assert value == pytest.approx(distances.sum(), rel=1e-5)


@each([case for case in CASES if case.pairs])
def test_losses_in_float64_of_very_close_pairs(case, apart=1e-6):
    rng = np.random.default_rng(4)
    ids = np.array([0, 0, 1, 1, 2, 2, 2, 0])
    z = 0.3 * oracles.unit(rng.normal(size=(8, 6)))
    steps = oracles.unit(rng.normal(size=(8, 6)))
    z[1] = z[0] + apart * steps[1]  # a positive
    z[4] = z[2] + apart * steps[4]  # a negative
    loss = losses.get(case.name, **case.arguments, dtype="float64")
    for ours, theirs in zip(parts(loss, ids, z), case.oracle(ids, z, **case.arguments)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-12)


def test_a_close_pair_without_weight_has_no_gradient():
    """Also not from the empty places of a chunk, which repeat the last pair."""

    def nothing(_, z):
        return ops.sum(0.0 * squared_distances(z, ops.stop_gradient(z) + 1e-3))

    _, gradient = value_and_gradient(nothing, None, SPREAD[:5], "float32")
    np.testing.assert_array_equal(gradient, 0.0)


@pytest.mark.parametrize("size", [3e19, 1e38, 1e-25, 1e-30, 1.0])
def test_huge_and_tiny_rows_are_normalized(size):
    z = (SPREAD / np.abs(SPREAD).max() * size).astype("float32")
    exact = oracles.unit(z.astype("float64"))
    np.testing.assert_allclose(
        np.asarray(normalize(ops.convert_to_tensor(z))), exact, rtol=1e-6, atol=1e-7
    )
    if size > 1e37 or size < 1e-29:
        return  # the gradient itself is out of float32's range
    weights = RNG.normal(size=z.shape).astype("float32")
    _, gradient = value_and_gradient(
        lambda weights, z: ops.sum(ops.convert_to_tensor(weights) * normalize(z)),
        weights,
        z,
        "float32",
    )
    across = weights - (weights * exact).sum(axis=1, keepdims=True) * exact
    expected = across / np.linalg.norm(z.astype("float64"), axis=1, keepdims=True)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


# Vectorized code ends within these batches: one or two rows after a multiple of 16 or 32.
SIZES = (5, 17, 33)


def xla(function):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("TensorFlow's XLA")
    import tensorflow as tf

    return tf.function(function, jit_compile=True)


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
def test_copies_are_normalized_to_equal_rows_and_at_distance_0(mode, dimensions, offset=100.0):
    def rows_and_distances(z):
        anchors = normalize(z + offset)
        return UnitLength()(z), Pairs.of_batch(ops.arange(z.shape[0]), anchors).squared_distances()

    call = mode(rows_and_distances)
    for size in SIZES:
        z, copies = with_copies(size, dimensions, seed=size)
        rows, found = map(ops.convert_to_numpy, call(ops.convert_to_tensor(z)))
        np.testing.assert_allclose(rows, oracles.unit(z.astype("float64")), atol=1e-6)
        np.testing.assert_array_equal(rows[copies], np.tile(rows[copies][:1], (copies.sum(), 1)))
        assert (found[copies][:, copies] == 0).all()
        assert (found[~copies][:, copies] > 0).all()


@modes
def test_a_huge_row_does_not_change_other_rows(mode):
    z, _ = with_copies(17, 64)
    rows = ops.convert_to_numpy(mode(normalize)(ops.convert_to_tensor(z)))
    z[3] *= 1e25
    beside = ops.convert_to_numpy(mode(normalize)(ops.convert_to_tensor(z)))
    np.testing.assert_array_equal(np.delete(beside, 3, axis=0), np.delete(rows, 3, axis=0))
