"""Properties of the pairwise cross-entropy, its simplified form, and the center loss."""

import keras
import numpy as np
import oracles
import pytest
from backend import value_and_gradient
from batches import batch, softmax

from keras_dml import losses
from keras_dml._pairwise.arithmetic import matmul

pytestmark = pytest.mark.any_backend


def log_partition(scores):
    return np.log(np.exp(scores).sum(axis=1))


def sums_over_n(ids, z, num_classes):
    """`(1/n) Σ_{y_j=k} z_j` for k = 0, 1, ..."""
    return np.array([z[ids == k].sum(axis=0) for k in range(num_classes)]) / len(z)


def linear_classifier(theta):
    """A float64 layer that gives the logits `z · θ_k`. Keras' Dense is float32 on PyTorch."""
    kernel = keras.ops.convert_to_tensor(theta.T)
    return keras.layers.Lambda(lambda z: matmul(z, kernel), dtype="float64")


def cross_entropy(ids, z, theta):
    return float(losses.CrossEntropyLoss(label_smoothing=0.0, dtype="float64")(ids, z @ theta.T))


@pytest.mark.parametrize("seed", [0, 1])
def test_simplified_is_cross_entropy_with_class_sums_as_weights(seed):
    ids, z = batch(seed, sizes=(5, 1, 3, 2))
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


def test_one_hot_groups_are_class_ids():
    ids, z = batch()
    loss = losses.SimplifiedPairwiseCrossEntropyLoss(dtype="float64", reduction=None)
    expected = np.asarray(loss(ids, z))
    np.testing.assert_allclose(np.asarray(loss(np.eye(6)[ids], z)), expected, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("arguments", [{}, {"lam": 0.3}])
def test_the_pairwise_gradient_treats_assignments_and_lambda_as_constants(seed, arguments):
    ids, z = batch(seed, sizes=(9, 1, 7, 6), dimensions=3)
    z *= 4  # for assignments that depend on z
    p = oracles.simplified_assignments(ids, z)
    lam = arguments.get("lam") or oracles.smallest_eigenvalue(p, z)
    assert lam > 1e-3  # Eq. 25 without the floor
    loss = losses.PairwiseCrossEntropyLoss(**arguments, dtype="float64")
    _, gradient = value_and_gradient(loss, ids, z)
    frozen = {"p": p, "lam": lam}
    expected = oracles.numeric_gradient(oracles.pairwise_cross_entropy, ids, z, **frozen)
    np.testing.assert_allclose(gradient, expected, atol=1e-6 * np.abs(expected).max())
    # Through p and λ the value has another gradient, so the comparison above can fail.
    moving = oracles.numeric_gradient(oracles.pairwise_cross_entropy, ids, z, **arguments)
    assert np.abs(moving - expected).max() > 1e-2 * np.abs(expected).max()


@pytest.mark.parametrize("lam", [0.01, 0.3, 4.0])
@pytest.mark.parametrize("num_weights", [4, 6], ids=["all present", "two classes absent"])
def test_the_gap_between_cross_entropy_and_pairwise_cross_entropy(lam, num_weights):
    """Holds for any weights θ and any λ; the loss gets p from a classifier with these weights."""
    ids, z = batch()
    n, theta = len(z), np.random.default_rng(9).normal(size=(num_weights, z.shape[1]))
    p = softmax(z @ theta.T)
    soft, hard = p.T @ z / n / lam, sums_over_n(ids, z, num_weights) / lam
    # The gradient of g at θ is λ θ².
    bregman = log_partition(z @ soft.T).mean() - log_partition(z @ theta.T).mean()
    bregman -= (lam * soft * (soft - theta)).sum()
    gap = lam / 2 * (((theta - hard) ** 2).sum() - ((theta - soft) ** 2).sum()) - bregman

    loss = losses.PairwiseCrossEntropyLoss(
        lam, classifier=linear_classifier(theta), dtype="float64"
    )
    value = float(loss(ids, z))
    assert bregman >= 0
    assert cross_entropy(ids, z, theta) - value == pytest.approx(gap, rel=1e-9, abs=1e-9)
    oracle = oracles.mean_loss(oracles.pairwise_cross_entropy, ids, z, lam=lam, p=p)
    assert value == pytest.approx(oracle, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("spce", (4, 2, 2), "y_true must be class ids.*or multi-hot groups"),
        ("spce", (4, 0), "y_true must be class ids.*or multi-hot groups"),
        ("spce", (5, 3), "one row for each image"),
        ("pce", (4, 3), r"y_true must be class ids of shape \[n\]"),
        ("center", (4, 3), r"y_true must be class ids of shape \[n\]"),
    ],
)
def test_groups_that_are_refused(name, shape, message):
    with pytest.raises(ValueError, match=message):
        losses.get(name)(np.ones(shape), np.ones((4, 3)))
