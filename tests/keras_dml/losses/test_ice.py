"""Properties of instance cross-entropy, in particular the gradient that it sets."""

import numpy as np
import oracles
import pytest
from backend import value_and_gradient
from batches import batch

from keras_dml.losses import InstanceCrossEntropyLoss

pytestmark = pytest.mark.any_backend


@pytest.mark.parametrize("anchor_gradient", [False, True])
@pytest.mark.parametrize(("scale", "pair_reduction"), [(1.0, "mean"), (64.0, "sum")])
def test_the_reweighted_gradient_matches_the_loops(anchor_gradient, scale, pair_reduction):
    ids, z = batch(seed=7)
    loss = InstanceCrossEntropyLoss(
        scale, anchor_gradient=anchor_gradient, pair_reduction=pair_reduction, dtype="float64"
    )
    _, gradient = value_and_gradient(loss, ids, z)
    expected = oracles.reweighted_gradient(ids, z, scale, anchor_gradient)
    np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-14)


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
