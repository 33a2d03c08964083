"""Properties of instance cross-entropy, in particular the gradient that it sets."""

import math

import numpy as np
import oracles
import pytest
from backend import value_and_gradient
from batches import batch

from keras_dml import losses
from keras_dml.losses import InstanceCrossEntropyLoss

pytestmark = pytest.mark.any_backend


@pytest.mark.parametrize("anchor_gradient", [False, True])
@pytest.mark.parametrize("scale", [1.0, 16.0, 64.0])
@pytest.mark.parametrize("pair_reduction", ["sum", "mean"])
def test_the_reweighted_gradient_matches_the_loops(anchor_gradient, scale, pair_reduction):
    ids, z = batch(seed=7)
    loss = InstanceCrossEntropyLoss(
        scale, anchor_gradient=anchor_gradient, pair_reduction=pair_reduction, dtype="float64"
    )
    _, gradient = value_and_gradient(loss, ids, z)
    expected = oracles.reweighted_gradient(ids, z, scale, anchor_gradient)
    np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-14)


def test_the_anchor_gradient_equals_the_gradient_of_the_scaled_loss():
    """Compare with the mean over anchors of L_a / (2 s Σ (1 − p)), with a constant divisor."""
    ids, z = batch(seed=8)
    scale = 5.0

    def divisors(z):
        f, found = oracles.unit(z), []
        for a in range(len(f)):
            rivals = sum(math.exp(scale * f[a] @ f[j]) for j in range(len(f)) if ids[j] != ids[a])
            positives = [j for j in range(len(f)) if j != a and ids[j] == ids[a]]
            misses = [rivals / (rivals + math.exp(scale * f[a] @ f[i])) for i in positives]
            found.append(2 * scale * sum(misses) if misses else 1.0)
        return np.array(found)

    constant = divisors(z)

    def scaled(class_ids, z):
        parts = oracles.instance_cross_entropy(class_ids, z, scale)
        return [part / constant for part in parts]

    loss = InstanceCrossEntropyLoss(scale, anchor_gradient=True, dtype="float64")
    _, gradient = value_and_gradient(loss, ids, z)
    expected = oracles.numeric_gradient(scaled, ids, z)
    np.testing.assert_allclose(gradient, expected, atol=1e-9)


@pytest.mark.parametrize("spread", [0.003, 0.3])
def test_each_anchors_weights_sum_to_the_same_twice(spread):
    """As many dimensions as images: the gradient's combination of anchors is unique."""
    rng = np.random.default_rng(0)
    ids, n = np.array([0, 0, 0, 1, 1, 2, 2]), 7
    z = np.eye(n) + spread * rng.uniform(size=(n, n))
    f = oracles.unit(z)
    loss = InstanceCrossEntropyLoss(64.0, dtype="float64")
    _, gradient = value_and_gradient(loss, ids, z)
    # Undo the normalization's length, and solve G_j = Σ_a w_aj (f_a − (f_a·f_j) f_j).
    gradient = gradient * np.linalg.norm(z, axis=1, keepdims=True)
    weights = np.zeros((n, n))
    for j in range(n):
        projected = f - (f @ f[j])[:, None] * f[j]
        others = [a for a in range(n) if a != j]
        weights[others, j] = np.linalg.lstsq(projected[others].T, gradient[j], rcond=None)[0]
    same = ids[:, None] == ids
    np.testing.assert_allclose(np.where(same, weights, 0).sum(axis=1), -1 / (2 * n), rtol=1e-6)
    np.testing.assert_allclose(np.where(same, 0, weights).sum(axis=1), 1 / (2 * n), rtol=1e-6)


def test_very_easy_positives_still_weigh_one_half():
    """1 − p underflows in float32 for every positive; its logarithm does not."""
    ids = np.array([0, 0, 0, 1, 1])
    z = np.array([[1, 0.01, 0], [1, -0.02, 0], [1, 0, 0.03], [-1, 0, 0.1], [-1, 0.1, 0]])
    loss = InstanceCrossEntropyLoss(100.0)
    value, gradient = value_and_gradient(loss, ids, z, "float32")
    assert value == pytest.approx(0.0, abs=1e-30)
    _, exact = value_and_gradient(InstanceCrossEntropyLoss(100.0, dtype="float64"), ids, z)
    assert np.abs(gradient[:3]).max() > 1e-3
    np.testing.assert_allclose(gradient, exact, atol=1e-4)


def test_the_value_does_not_depend_on_the_gradient_option():
    ids, z = batch()
    values = {
        float(
            InstanceCrossEntropyLoss(
                8.0, reweight=reweight, anchor_gradient=anchor, dtype="float64"
            )(ids, z)
        )
        for reweight, anchor in [(False, False), (True, False), (True, True)]
    }
    assert max(values) - min(values) < 1e-12


@pytest.mark.parametrize("ids", [[0, 0, 0, 0], [0, 1, 2, 3]], ids=["no negatives", "no positives"])
@pytest.mark.parametrize("anchor_gradient", [False, True])
def test_an_image_without_terms_has_no_gradient(ids, anchor_gradient):
    _, z = batch()
    loss = InstanceCrossEntropyLoss(anchor_gradient=anchor_gradient)
    value, gradient = value_and_gradient(loss, np.array(ids), z[:4], "float32")
    assert value == 0.0
    assert (gradient == 0.0).all()


def test_sample_weights_weigh_the_gradient_of_their_anchors():
    ids, z = batch(seed=9)
    loss = InstanceCrossEntropyLoss(16.0, dtype="float64")
    total = np.zeros_like(z)
    for a in range(len(ids)):
        _, gradient = value_and_gradient(loss, ids, z, sample_weight=np.eye(len(ids))[a])
        total += gradient
    _, whole = value_and_gradient(loss, ids, z)
    np.testing.assert_allclose(total, whole, atol=1e-12)


def test_small_losses_are_exact():
    """Logits of some hundreds, whose difference would lose a loss of 1e-6."""
    ids = np.array([0, 0, 1, 1])
    z = np.array([[1.0, 0.0], [1.0, 0.1], [0.78, 0.6], [0.75, 0.65]])
    value = float(InstanceCrossEntropyLoss()(ids, z))
    expected = oracles.mean_loss(oracles.instance_cross_entropy, ids, z)
    assert 0 < value < 1e-3
    assert value == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale": 0.0}, "scale must be a number above 0.*scale=0.0"),
        ({"pair_reduction": "max"}, "pair_reduction must be one of 'sum', 'mean'"),
        (
            {"reweight": False, "anchor_gradient": True},
            "anchor_gradient must be False when reweight is False.*anchor_gradient=True",
        ),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        losses.get("ice", **arguments)
