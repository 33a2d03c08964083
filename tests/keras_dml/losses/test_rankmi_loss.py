"""Properties of the RankMI loss and its fixed statistics network."""

import math

import keras
import numpy as np
import oracles
import pytest
from backend import value_and_gradient
from batches import batch, small_model
from scipy.spatial.distance import pdist

from keras_dml import losses
from keras_dml.losses import FixedStatistics, RankMILoss

pytestmark = pytest.mark.any_backend


def small_network():
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((1,)), *layers])


def test_any_keras_network_is_the_statistics_network():
    network = small_network()
    kernel, bias, out, out_bias = (w.astype("float64") for w in network.get_weights())

    def by_hand(distance):
        return float(np.tanh(distance * kernel[0] + bias) @ out[:, 0] + out_bias[0])

    ids, z = batch(seed=5)
    loss = RankMILoss(network, dtype="float64")
    value, gradient = value_and_gradient(loss, ids, z)
    given = {"statistics": by_hand}
    # Keras computes the network in its dtype, float32.
    assert value == pytest.approx(oracles.mean_loss(oracles.rankmi, ids, z, **given), rel=1e-5)
    expected = oracles.numeric_gradient(oracles.rankmi, ids, z, **given)
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_the_optimal_statistic_reaches_two_log_two():
    """The bound of separated distributions, with an arbitrarily large V = log p⁺ − log p⁻."""
    ids = np.repeat(np.arange(3), (4, 3, 3))  # tight classes around far-apart directions
    z = np.eye(3, 6)[ids] + 0.05 * np.random.default_rng(1).normal(size=(10, 6))
    steep = RankMILoss(lambda d: 1e3 * (0.8 - d), dtype="float64")
    assert float(steep(ids, z)) == pytest.approx(-2 * math.log(2), rel=1e-9)


def test_separated_at_beta_the_fixed_statistic_gives_the_open_quadruplet_term():
    """Statement 1 needs the opposite of a good embedding: positives beyond β, negatives within."""
    # Classes along the diagonals of a square: every negative is nearer than every positive.
    ids = np.array([0, 0, 1, 1])
    z = np.array([[1.0, 0.05], [-1.0, 0.0], [0.0, 1.0], [0.1, -1.0]])
    distances = pdist(oracles.unit(z))
    positives, negatives = distances[[0, 5]], distances[1:5]  # of rows 0 and 1, and of 2 and 3
    assert negatives.max() < 1.7 < positives.min()
    expected = np.mean(positives) - np.mean(negatives) - 2 * math.log(2)

    def value(beta):
        return float(RankMILoss(FixedStatistics(beta), dtype="float64")(ids, z))

    assert value(1.7) == pytest.approx(expected, rel=1e-10)
    assert value(1.6) == pytest.approx(expected, rel=1e-10)
    # If the positives are on the other side of β, the statement fails.
    assert abs(value(2.5) - expected) > 0.1


@pytest.mark.parametrize("x", [-3.0, -0.7, -1e-3, 1e-3, 0.7, 3.0, 40.0])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_equation_13(x, beta):
    value = FixedStatistics(beta)(keras.ops.convert_to_tensor([[x + beta]], dtype="float64"))
    assert float(value[0, 0]) == pytest.approx(oracles.fixed_statistics(x), rel=1e-9, abs=1e-9)


def test_equation_13_is_finite_at_zero():
    ids, z = np.array([0, 0, 1, 1]), np.ones((4, 3))
    value, gradient = value_and_gradient(RankMILoss(), ids, z, "float32")
    assert np.isfinite(value) and np.isfinite(gradient).all()
    tightness, contrastive = RankMILoss(reduction=None).parts(ids, z)
    np.testing.assert_allclose(np.asarray(tightness), -math.log(2), atol=1e-5)
    assert np.asarray(contrastive).min() > 10


@pytest.mark.slow
def test_a_file_keeps_the_network_and_its_weights(tmp_path):
    ids, z = batch()
    loss = RankMILoss(small_network())
    x = np.ones((8, 8), "float32")
    model = small_model()
    model.compile("sgd", loss)
    model.fit(x, np.arange(8) % 2, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.loss.statistics_network is not loss.statistics_network
    assert float(loaded.loss(ids, z)) == float(loss(ids, z))


def test_an_unbuilt_network_is_built_before_training():
    network = keras.Sequential([keras.layers.Dense(1)])
    RankMILoss(network)
    assert network.built and len(network.weights) == 2


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="JAX knows all shapes")
def test_distance_weights_of_an_unknown_dimension():
    import tensorflow as tf

    ids, z = np.array([0, 0, 1, 1, 2, 2]), np.random.default_rng(0).normal(size=(6, 5))
    loss = losses.RankMILoss(sampling="distance_weighted")
    specs = [tf.TensorSpec((None,), "int64"), tf.TensorSpec((None, None), "float32")]
    traced = tf.function(lambda ids, z: loss(ids, z), input_signature=specs)
    value = float(traced(ids, z.astype("float32")))
    assert value == pytest.approx(float(loss(ids, z)), rel=1e-5)
