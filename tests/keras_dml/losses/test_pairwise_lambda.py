"""λ of the pairwise cross-entropy: Eq. 25, its floor, and eigenvalues that are not needed."""

import keras
import numpy as np
import oracles
import pytest
from backend import compiled, value_and_gradient
from batches import batch, softmax

from keras_dml import losses, metrics

pytestmark = pytest.mark.any_backend

FLOOR = 0.02


def test_lambda_is_the_smallest_eigenvalue_over_the_classes():
    """Many images, few dimensions: Eq. 25 is above the floor."""
    ids, z = batch(sizes=(9, 1, 7, 6), dimensions=3)
    eigenvalue = oracles.smallest_eigenvalue(oracles.simplified_assignments(ids, z), z)
    given, computed = (
        float(losses.PairwiseCrossEntropyLoss(**arguments, dtype="float64")(ids, z))
        for arguments in ({"lam": eigenvalue}, {"lam_floor": eigenvalue / 2})
    )
    assert computed == pytest.approx(given, rel=1e-9)
    floored = float(losses.PairwiseCrossEntropyLoss(lam_floor=2 * eigenvalue)(ids, z))
    assert floored != pytest.approx(given, rel=1e-2)
    expected = float(losses.PairwiseCrossEntropyLoss(lam=2 * eigenvalue)(ids, z))
    assert floored == pytest.approx(expected, rel=1e-5)


def test_a_metric_records_lambda():
    ids, z = batch(sizes=(9, 1, 7, 6), dimensions=3)
    eigenvalue = oracles.smallest_eigenvalue(oracles.simplified_assignments(ids, z), z)
    for arguments, expected in (
        ({"lam_floor": eigenvalue / 2}, eigenvalue),
        ({"lam_floor": 2 * eigenvalue}, 2 * eigenvalue),
        ({"lam": 0.3}, 0.3),
    ):
        loss = losses.PairwiseCrossEntropyLoss(**arguments)
        metric = metrics.LossPart(loss, "lambda_of_batch")
        metric.update_state(ids, z.astype("float32"))
        assert float(metric.result()) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("floor", [1e-3, 0.05])
def test_fewer_images_than_dimensions_give_the_floor(floor):
    ids, z = batch(dimensions=12)  # 11 images
    assert oracles.smallest_eigenvalue(oracles.simplified_assignments(ids, z), z) < 1e-12
    at_floor = losses.PairwiseCrossEntropyLoss(lam=floor, dtype="float64")
    by_eigenvalue = losses.PairwiseCrossEntropyLoss(lam_floor=floor, dtype="float64")
    expected, expected_gradient = value_and_gradient(at_floor, ids, z)
    value, gradient = value_and_gradient(by_eigenvalue, ids, z)
    assert value == expected
    np.testing.assert_array_equal(gradient, expected_gradient)


def dimensions_of(third, fourth):
    """Return 24 images of three classes in four dimensions, of which the last two are scaled."""
    rng = np.random.default_rng(0)
    z = 2.0 * rng.normal(size=(24, 4))
    z[:, 2] *= third
    z[:, 3] = fourth(z)
    return np.arange(24) % 3, z


def classifier_with(bias):
    """Return four classes for four dimensions, and the classifier's logits."""
    layer = keras.layers.Dense(4, dtype="float64")
    layer.build((None, 4))
    kernel = 0.1 * np.random.default_rng(1).normal(size=(4, 4))
    layer.set_weights([kernel, np.array(bias)])
    return layer, lambda z: z @ kernel + bias


def unchanged(z):
    return z[:, 3]


def almost_the_first(z):
    return z[:, 0] + 0.01 * z[:, 3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("third", "fourth", "last_bias", "above"),
    [
        pytest.param(1.0, unchanged, None, True, id="above the floor"),
        pytest.param(1.0, unchanged, 0.0, True, id="above the floor, with a classifier"),
        pytest.param(0.01, unchanged, None, False, id="one small dimension"),
        pytest.param(1.0, unchanged, -9.0, False, id="one improbable class"),
        pytest.param(1.0, almost_the_first, None, False, id="two dimensions almost equal"),
    ],
)
def test_eigenvalues_above_and_below_the_floor(third, fourth, last_bias, above):
    ids, z = dimensions_of(third, fourth)
    classifier, p = None, oracles.simplified_assignments(ids, z)
    if last_bias is not None:
        classifier, logits = classifier_with([0.0, 0.0, 0.0, last_bias])
        p = softmax(logits(z))
    assert (oracles.smallest_eigenvalue(p, z) > FLOOR) == above
    arguments = {"lam_floor": FLOOR, "classifier": classifier, "dtype": "float64"}
    loss = losses.PairwiseCrossEntropyLoss(**arguments)
    expected = oracles.mean_loss(oracles.pairwise_cross_entropy, ids, z, lam_floor=FLOOR, p=p)
    assert float(compiled(loss)(ids, z)) == pytest.approx(expected, rel=1e-9)
    if keras.backend.backend() == "tensorflow":
        check_by_xla_and_with_unknown_size(loss, ids, z, expected)


def check_by_xla_and_with_unknown_size(loss, ids, z, expected):
    import tensorflow as tf

    signature = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, z.shape[1]], tf.float64)]
    for by_xla in (False, True):
        call = tf.function(loss.__call__, input_signature=signature, jit_compile=by_xla)
        assert float(call(ids, z)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="JAX knows every shape")
def test_a_batch_of_unknown_size_gives_the_floor():
    ids, z = batch(dimensions=12)
    loss = losses.PairwiseCrossEntropyLoss(dtype="float64")
    check_by_xla_and_with_unknown_size(loss, ids, z, float(loss(ids, z)))


def test_the_pairwise_loss_can_exceed_the_smallest_cross_entropy():
    """The counterexample to Proposition 1 that the docstring prints."""
    ids = np.repeat([0, 1], 3)
    z = np.array([-1.0, -1.0, 1.0, 1.0, 1.0, -1.0])[:, None]
    theta = 0.5 * np.log(2.0) * np.array([[-1.0, 1.0]])  # two of three are right: odds of 2
    probabilities = softmax(z @ theta)
    gradient = z.T @ (probabilities - np.eye(2)[ids])
    np.testing.assert_allclose(gradient, 0.0, atol=1e-12)  # the minimizer: cross-entropy is convex
    cross_entropy = losses.CrossEntropyLoss(label_smoothing=0.0, dtype="float64")(ids, z @ theta)
    assert float(cross_entropy) == pytest.approx(0.6365, abs=1e-4)
    assert oracles.smallest_eigenvalue(probabilities, z) == pytest.approx(2 / 9)
    classifier = keras.layers.Dense(2, use_bias=False, dtype="float64")
    classifier.build((None, 1))
    classifier.set_weights([theta])
    pairwise = losses.PairwiseCrossEntropyLoss(classifier=classifier, dtype="float64")(ids, z)
    assert float(pairwise) == pytest.approx(0.7014, abs=1e-4)
