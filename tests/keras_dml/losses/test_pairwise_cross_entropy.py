"""The pairwise cross-entropy with λ (Eq. 25) and a classifier, and its simplified form."""

import keras
import numpy as np
import oracles
import pytest
from backend import compiled, value_and_gradient
from batches import batch, small_model
from scipy.special import logsumexp, softmax

from keras_dml import losses, metrics
from keras_dml._pairwise.arithmetic import matmul

pytestmark = pytest.mark.any_backend


def sums_over_n(ids, z, num_classes):
    """`(1/n) Σ_{y_j=k} z_j` for k = 0, 1, ..."""
    return np.array([z[ids == k].sum(axis=0) for k in range(num_classes)]) / len(z)


def linear_classifier(kernel, bias):
    """Return a float64 layer with the logits `z · W + b`. Keras' Dense is float32 on PyTorch."""
    kernel, bias = map(keras.ops.convert_to_tensor, (kernel, bias))
    return keras.layers.Lambda(lambda z: matmul(z, kernel) + bias, dtype="float64")


def cross_entropy(ids, z, theta):
    return float(losses.CrossEntropyLoss(label_smoothing=0.0, dtype="float64")(ids, z @ theta.T))


def test_simplified_is_cross_entropy_with_class_sums_as_weights():
    ids, z = batch()
    weights = sums_over_n(ids, z, 4)
    value = float(losses.SimplifiedPairwiseCrossEntropyLoss(dtype="float64")(ids, z))
    assert value == pytest.approx(cross_entropy(ids, z, weights), rel=1e-12)


GROUPS = np.array(
    [
        [1, 0, 0, 1, 0],  # in two groups
        [0, 1, 0, 0, 0],
        [1, 1, 0, 1, 0],  # in three groups
        [0, 0, 0, 0, 0],  # in no group
        [0, 0, 0, 1, 0],
        [1, 0, 0, 0, 0],
    ]  # the batch contains no image of the third and fifth group
)


@pytest.mark.parametrize("dtype", ["int32", "float32", "bool"])
def test_multi_hot_groups_match_the_loops(dtype):
    _, z = batch(dimensions=4)
    z = z[: len(GROUPS)]
    loss = losses.SimplifiedPairwiseCrossEntropyLoss(dtype="float64")
    expected = oracles.simplified_pairwise_cross_entropy(GROUPS, z)
    for ours, theirs in zip(loss.parts(GROUPS.astype(dtype), z), expected):
        np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-10)
    _, gradient = value_and_gradient(loss, GROUPS.astype(dtype), z)
    numeric = oracles.numeric_gradient(oracles.simplified_pairwise_cross_entropy, GROUPS, z)
    np.testing.assert_allclose(gradient, numeric, atol=1e-8)
    assert (gradient[3] == 0.0).all()


@pytest.mark.parametrize("lam", [0.01, 0.3, 4.0])
@pytest.mark.parametrize("num_weights", [4, 6], ids=["all present", "two classes absent"])
def test_the_gap_between_cross_entropy_and_pairwise_cross_entropy(lam, num_weights):
    """Holds for any weights θ and any λ; the loss gets p from a classifier with these weights."""
    ids, z = batch()
    n, theta = len(z), np.random.default_rng(9).normal(size=(num_weights, z.shape[1]))
    p = softmax(z @ theta.T, axis=1)
    soft, hard = p.T @ z / n / lam, sums_over_n(ids, z, num_weights) / lam
    # The gradient of g at θ is λ θ².
    bregman = np.mean(logsumexp(z @ soft.T, axis=1) - logsumexp(z @ theta.T, axis=1))
    bregman -= (lam * soft * (soft - theta)).sum()
    gap = lam / 2 * (((theta - hard) ** 2).sum() - ((theta - soft) ** 2).sum()) - bregman

    classifier = linear_classifier(theta.T, np.zeros(num_weights))
    loss = losses.PairwiseCrossEntropyLoss(lam, classifier=classifier, dtype="float64")
    value = float(loss(ids, z))
    assert cross_entropy(ids, z, theta) - value == pytest.approx(gap, rel=1e-9, abs=1e-9)
    oracle = oracles.mean_loss(oracles.pairwise_cross_entropy, ids, z, lam=lam, p=p)
    assert value == pytest.approx(oracle, rel=1e-9)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((4, 2, 2), "y_true must be class ids.*or multi-hot groups"),
        ((4, 0), "y_true must be class ids.*or multi-hot groups"),
        ((5, 3), "one row for each image"),
    ],
)
def test_groups_that_are_refused(shape, message):
    with pytest.raises(ValueError, match=message):
        losses.SimplifiedPairwiseCrossEntropyLoss()(np.ones(shape), np.ones((4, 3)))


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


FLOOR = 0.02
EMBEDDINGS = 2.0 * np.random.default_rng(0).normal(size=(24, 4))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("z", "last_bias", "above"),
    [
        pytest.param(EMBEDDINGS, None, True, id="above the floor"),
        pytest.param(EMBEDDINGS, 0.0, True, id="above the floor, with a classifier"),
        pytest.param(EMBEDDINGS * [1, 1, 0.01, 1], None, False, id="one small dimension"),
        pytest.param(EMBEDDINGS, -9.0, False, id="one improbable class"),
        pytest.param(batch(dimensions=12)[1], None, False, id="fewer images than dimensions"),
    ],
)
def test_eigenvalues_above_and_below_the_floor(z, last_bias, above):
    ids = np.arange(len(z)) % 3
    classifier, p = None, oracles.simplified_assignments(ids, z)
    if last_bias is not None:
        kernel = 0.1 * np.random.default_rng(1).normal(size=(4, 4))
        bias = np.array([0.0, 0.0, 0.0, last_bias])
        classifier, p = linear_classifier(kernel, bias), softmax(z @ kernel + bias, axis=1)
    assert (oracles.smallest_eigenvalue(p, z) > FLOOR) == above
    arguments = {"lam_floor": FLOOR, "classifier": classifier, "dtype": "float64"}
    loss = losses.PairwiseCrossEntropyLoss(**arguments)
    expected = oracles.mean_loss(oracles.pairwise_cross_entropy, ids, z, lam_floor=FLOOR, p=p)
    assert float(compiled(loss)(ids, z)) == pytest.approx(expected, rel=1e-9)


def test_the_pairwise_loss_can_exceed_the_smallest_cross_entropy():
    """The counterexample to Proposition 1 that the docstring prints."""
    ids = np.repeat([0, 1], 3)
    z = np.array([-1.0, -1.0, 1.0, 1.0, 1.0, -1.0])[:, None]
    theta = 0.5 * np.log(2.0) * np.array([[-1.0, 1.0]])  # two of three are right: odds of 2
    probabilities = softmax(z @ theta, axis=1)
    gradient = z.T @ (probabilities - np.eye(2)[ids])
    np.testing.assert_allclose(gradient, 0.0, atol=1e-12)  # the minimizer: cross-entropy is convex
    assert cross_entropy(ids, z, theta.T) == pytest.approx(0.6365, abs=1e-4)
    assert oracles.smallest_eigenvalue(probabilities, z) == pytest.approx(2 / 9)
    classifier = linear_classifier(theta, np.zeros(2))
    pairwise = losses.PairwiseCrossEntropyLoss(classifier=classifier, dtype="float64")(ids, z)
    assert float(pairwise) == pytest.approx(0.7014, abs=1e-4)


@pytest.mark.skipif(
    keras.backend.backend() == "torch", reason="Keras' Dense computes float64 in float32 there"
)
def test_a_classifier_sets_the_assignments_and_gets_no_gradient():
    """With a bias, other numbers of classes than in the batch, and dropout that must stay off."""
    ids, z = batch()
    dropout = keras.layers.Dropout(0.5, dtype="float64")
    dense = keras.layers.Dense(7, dtype="float64", bias_initializer="normal")
    classifier = keras.Sequential([keras.Input((6,), dtype="float64"), dropout, dense])
    kernel, bias = (np.asarray(weight) for weight in dense.get_weights())
    p = softmax(z @ kernel + bias, axis=1)
    loss = losses.PairwiseCrossEntropyLoss(0.3, classifier=classifier, dtype="float64")
    frozen = {"p": p, "lam": 0.3}
    value, gradient = value_and_gradient(loss, ids, z)
    expected = oracles.mean_loss(oracles.pairwise_cross_entropy, ids, z, **frozen)
    assert value == pytest.approx(expected, rel=1e-9)
    numeric = oracles.numeric_gradient(oracles.pairwise_cross_entropy, ids, z, **frozen)
    np.testing.assert_allclose(gradient, numeric, atol=1e-7)


@pytest.mark.slow
def test_the_classifier_of_the_model_is_shared_while_both_train(tmp_path):
    """The loss uses the layer's current weights, not the weights at construction."""
    ids, x = batch(seed=5, sizes=(20, 10, 15, 19), dimensions=8)
    inputs = keras.Input((8,))
    embeddings = keras.layers.Dense(5, name="embeddings")(inputs)
    classifier = keras.layers.Dense(4, name="classes", kernel_initializer="zeros")
    model = keras.Model(inputs, {"embeddings": embeddings, "classes": classifier(embeddings)})
    loss = losses.PairwiseCrossEntropyLoss(0.5, classifier=classifier)
    model.compile(
        keras.optimizers.Adam(0.02),
        {"embeddings": loss, "classes": losses.CrossEntropyLoss(label_smoothing=0.0)},
    )
    targets = {"embeddings": ids, "classes": ids}
    model.fit(x, targets, batch_size=32, epochs=4, verbose=0)
    assert np.abs(np.asarray(classifier.get_weights()[0])).max() > 0
    logs = model.evaluate(x, targets, batch_size=len(x), verbose=0, return_dict=True)
    outputs = model.predict(x, verbose=0)
    z = outputs["embeddings"].astype("float64")
    p = softmax(outputs["classes"].astype("float64"), axis=1)
    expected = oracles.mean_loss(oracles.pairwise_cross_entropy, ids, z, lam=0.5, p=p)
    assert logs["embeddings_loss"] == pytest.approx(expected, rel=1e-4, abs=1e-5)

    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    own = loaded.loss["embeddings"].classifier
    assert own is not loaded.get_layer("classes")
    assert len(own.get_weights()) == 2
    logs = loaded.evaluate(x, targets, batch_size=len(x), verbose=0, return_dict=True)
    assert logs["embeddings_loss"] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_weights_saved_without_a_classifier_load_into_a_model_with_one(tmp_path):
    ids, x = batch(dimensions=8)
    plain, with_classifier = small_model(), small_model()
    plain.compile("sgd", losses.PairwiseCrossEntropyLoss(0.5))
    plain.save_weights(tmp_path / "plain.weights.h5")
    classifier = keras.layers.Dense(3)
    with_classifier.compile("sgd", losses.PairwiseCrossEntropyLoss(0.5, classifier=classifier))
    with_classifier.evaluate(x, ids, verbose=0)
    kept = classifier.get_weights()
    with_classifier.load_weights(tmp_path / "plain.weights.h5")
    np.testing.assert_array_equal(classifier.get_weights()[0], kept[0])
