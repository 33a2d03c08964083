"""Second derivatives are correct. Those of fused losses are refused with advice."""

import keras
import numpy as np
import pytest
import tiers
from backend import value_and_gradient
from batches import batch
from loss_cases import each
from oracles import CASES

from keras_dml import losses
from keras_dml._backend.gradients import SecondDerivativeError, once_differentiable
from keras_dml._pairwise.close_pairs import squared_distances
from keras_dml._pairwise.pairs import normalize

pytestmark = pytest.mark.any_backend

STEP = 1e-5
FUSED = ["smooth_ap", "recall_at_k"]
# Their gradients jump at a distance of 0.
OF_DISTANCES = ["contrastive", "lifted_structure", "margin", "triplet", "quadruplet"]
OF_DISTANCES += ["ranked_list", "rankmi"]


def product(loss, ids, z, direction):
    """Compute the Hessian times a direction: the derivative of the gradient along it."""
    z, direction = (keras.ops.convert_to_tensor(x, dtype="float64") for x in (z, direction))
    if keras.backend.backend() == "jax":
        import jax

        gradient = jax.grad(lambda z: loss(ids, z))
        return jax.jit(jax.grad(lambda z: (gradient(z) * direction).sum()))(z)
    if keras.backend.backend() == "torch":
        import torch

        z.requires_grad_()
        (gradient,) = torch.autograd.grad(loss(ids, z), z, create_graph=True)
        return torch.autograd.grad((gradient * direction).sum(), z)[0]
    import tensorflow as tf

    with tf.GradientTape() as outer:
        outer.watch(z)
        with tf.GradientTape() as inner:
            inner.watch(z)
            value = loss(ids, z)
        along = tf.reduce_sum(inner.gradient(value, z) * direction)
    return outer.gradient(along, z)


def check(loss, ids, z, reference=None):
    """Compare with differences of gradients of a reference, or of the loss."""
    direction = np.random.default_rng(3).normal(size=z.shape)
    ahead, behind = (
        value_and_gradient(reference or loss, ids, z + sign * STEP * direction)[1]
        for sign in (1, -1)
    )
    expected = (ahead - behind) / (2 * STEP)
    found = np.asarray(product(loss, ids, z, direction))
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max() + 1e-6)


def with_constants_of(loss, ids, z, monkeypatch):
    """Return the loss with every `stop_gradient` at the value that it has at z."""
    stop_gradient, constants = keras.ops.stop_gradient, []

    def record(x):
        constants.append(stop_gradient(x))
        return constants[-1]

    with monkeypatch.context() as recording:
        recording.setattr(keras.ops, "stop_gradient", record)
        loss(ids, keras.ops.convert_to_tensor(z))

    def replay(ids, z):
        values = iter(constants)
        with monkeypatch.context() as replaying:
            replaying.setattr(keras.ops, "stop_gradient", lambda _: next(values))
            return loss(ids, z)

    return replay


@each()
def test_second_derivatives_match_differences_of_gradients(case, monkeypatch):
    ids, z = batch(seed=6)
    z /= np.abs(z).max()  # also valid cosines for the losses on proxies
    loss = losses.get(case.name, **case.arguments, dtype="float64")
    if case.name in FUSED:
        with pytest.raises(SecondDerivativeError, match="not supported here: set fused=False"):
            product(loss, ids, z, np.ones_like(z))
    elif case.numeric:
        check(loss, ids, z)
    else:
        # Weights that depend on z are constants for both derivatives.
        check(loss, ids, z, with_constants_of(loss, ids, z, monkeypatch))


@each(
    [case for case in CASES if case.numeric and case.name not in [*FUSED, *OF_DISTANCES]],
    quick=["fastap"],
)
@tiers.parametrize("equal", ["two images", "each class", "all images"], ["all images"])
def test_second_derivatives_at_equal_embeddings_match_differences_of_gradients(equal, case):
    ids, z = batch(seed=6)
    z /= np.abs(z).max()
    if equal == "two images":
        z[np.flatnonzero(ids == 0)[1]] = z[np.flatnonzero(ids == 0)[0]]
    else:
        z = z[np.argmax(ids[:, None] == ids, axis=1) if equal == "each class" else 0 * ids]
    check(losses.get(case.name, **case.arguments, dtype="float64"), ids, z)


@pytest.mark.parametrize("name", FUSED)
def test_the_formula_of_a_fused_loss_has_second_derivatives(name):
    ids, z = batch(seed=6)
    arguments = {"temperature": 0.1} if name == "smooth_ap" else {"rank_temperature": 0.1}
    loss, formula = (losses.get(name, **arguments, dtype="float64") for _ in range(2))
    formula.fused = False
    value, gradient = value_and_gradient(loss, ids, z)
    expected, expected_gradient = value_and_gradient(formula, ids, z)
    assert value == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-10)
    check(formula, ids, z)


@pytest.mark.parametrize("place", [0.0, 100.0])
def test_second_derivatives_of_distances_between_close_pairs(place):
    _, z = batch(seed=6)
    z = z + place
    z[1], z[3] = z[0] + 1e-9, z[2]

    def weighted(_, x):
        weights = np.random.default_rng(0).normal(size=(len(z), len(z)))
        squares = squared_distances(x, x) + squared_distances(x, keras.ops.flip(x, axis=0))
        return keras.ops.sum(keras.ops.convert_to_tensor(weights) * keras.ops.exp(-squares))

    check(weighted, None, z)


def test_second_derivatives_of_unit_vectors():
    _, z = batch(seed=6)
    weights = np.random.default_rng(0).normal(size=z.shape)
    check(lambda _, x: keras.ops.sum(keras.ops.convert_to_tensor(weights) * normalize(x)), None, z)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="tapes of TensorFlow")
@pytest.mark.parametrize("mode", ["eager", "graph", "XLA"])
def test_under_several_tapes_only_second_derivatives_are_refused(mode):
    """TensorFlow builds the derivatives of gradients, too, although nothing uses them."""
    import tensorflow as tf

    ids, z = batch(seed=6)
    expected, z = 2 * z, tf.constant(z)

    def squares(_, z):
        return tf.reduce_sum(tf.square(once_differentiable(z, "take another loss")))

    loss = squares
    if mode != "eager":
        loss = tf.function(loss, jit_compile=mode == "XLA")
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(z)
        with tf.GradientTape() as inner:
            inner.watch(z)
            value = loss(ids, z)
        first = inner.gradient(value, z)
    for gradient in (first, outer.gradient(value, z), outer.jacobian(value, z)):
        np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-12)
    refused = (SecondDerivativeError, tf.errors.UnimplementedError)
    with pytest.raises(refused, match="not supported"):
        tf.function(product)(squares, ids, z, np.ones_like(z))
    if mode == "eager":
        with pytest.raises(tf.errors.UnimplementedError, match="SecondDerivativeError"):
            outer.jacobian(first, z)


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a step of TensorFlow")
def test_a_gradient_penalty_in_fit():
    import tensorflow as tf

    class Penalized(keras.Model):
        weight = 0.0

        def train_step(self, data):
            x, ids = data
            with tf.GradientTape() as outer:
                z = self(x, training=True)
                with tf.GradientTape() as inner:
                    inner.watch(z)
                    value = self.compute_loss(x, ids, z)
                penalty = tf.reduce_sum(tf.square(inner.gradient(value, z)))
                total = value + self.weight * penalty
            variables = self.trainable_variables
            self.optimizer.apply(outer.gradient(total, variables), variables)
            return {"penalty": penalty}

    ids, x = batch(seed=5, sizes=(20, 10, 15, 19), dimensions=8)

    def trained(weight):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((8,))
        model = Penalized(inputs, keras.layers.Dense(4)(inputs))
        model.weight = weight
        model.compile(keras.optimizers.Adam(0.01), losses.SNCALoss(temperature=0.5))
        return model.fit(x, ids, batch_size=64, epochs=15, verbose=0).history["penalty"][-1]

    assert trained(100.0) < 0.5 * trained(0.0)
