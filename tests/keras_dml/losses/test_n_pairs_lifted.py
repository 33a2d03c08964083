"""Properties of the n-pairs and the lifted structure loss."""

import numpy as np
import oracles
import pytest
from backend import value_and_gradient
from batches import batch

from keras_dml import losses

pytestmark = pytest.mark.any_backend


def addons_npairs(class_ids, similarities):
    """tensorflow-addons' `npairs_loss`, with the same steps."""
    targets = (class_ids[:, None] == class_ids[None, :]).astype(float)
    targets /= targets.sum(axis=1, keepdims=True)
    logits = similarities - similarities.max(axis=1, keepdims=True)
    log_softmax = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return float(np.mean(-(targets * log_softmax).sum(axis=1)))


@pytest.mark.parametrize("normalize", [False, True])
def test_n_pairs_equals_addons_loss_of_the_similarity_matrix(normalize):
    ids, z = batch(sizes=(4, 2, 3))
    f = oracles.unit(z) if normalize else z
    loss = losses.NPairsLoss(normalize=normalize, dtype="float64")
    assert float(loss(ids, z)) == pytest.approx(addons_npairs(ids, f @ f.T), rel=1e-12)


def test_n_pairs_of_a_single_class():
    _, z = batch()
    for ids in ([0, 0, 0, 0], [0, 1, 2, 3]):
        value, gradient = value_and_gradient(losses.NPairsLoss(), np.array(ids), z[:4], "float32")
        assert value == 0.0
        assert (gradient == 0.0).all()


def test_n_pairs_does_not_overflow():
    ids, z = batch(sizes=(3, 3))
    value, gradient = value_and_gradient(losses.NPairsLoss(), ids, 100.0 * z, "float32")
    assert np.isfinite(value) and value > 0
    assert np.isfinite(gradient).all()


def addons_lifted(class_ids, z, margin):
    """tensorflow-addons' `lifted_struct_loss`, written as a sum over unordered pairs."""
    total, pairs = 0.0, 0
    n = len(z)
    for i in range(n):
        for j in range(i + 1, n):
            if class_ids[i] == class_ids[j]:
                pairs += 1
                pushed = [
                    np.exp(margin - np.linalg.norm(z[a] - z[k]))
                    for a in (i, j)
                    for k in range(n)
                    if class_ids[k] != class_ids[a]
                ]
                total += max(0.0, np.log(sum(pushed)) + np.linalg.norm(z[i] - z[j])) ** 2
    return total / (2 * pairs)


@pytest.mark.slow_on_jax
@pytest.mark.parametrize("margin", [0.4, 1.0])
def test_lifted_structure_equals_addons_loss(margin):
    ids, z = batch(seed=3, sizes=(4, 1, 2, 5))
    loss = losses.LiftedStructureLoss(margin=margin, normalize=False, dtype="float64")
    assert float(loss(ids, z)) == pytest.approx(addons_lifted(ids, z, margin), rel=1e-12)


@pytest.mark.parametrize("sizes", [(4, 3, 1, 2), (6,), (2, 2, 2)])
def test_lifted_structure_with_weights_matches_the_loops(sizes):
    ids, z = batch(sizes=sizes)
    weights = np.linspace(0.5, 2, len(ids))
    loss = losses.LiftedStructureLoss(margin=0.7, dtype="float64")

    def weighted(ids, z):
        return [weights * part for part in oracles.lifted_structure(ids, z, margin=0.7)]

    value, gradient = value_and_gradient(loss, ids, z, sample_weight=weights)
    assert value == pytest.approx(oracles.mean_loss(weighted, ids, z), rel=1e-10, abs=1e-14)
    np.testing.assert_allclose(gradient, oracles.numeric_gradient(weighted, ids, z), atol=1e-7)


def test_lifted_structure_with_closed_hinges_is_zero():
    ids = np.array([0, 0, 1, 1])
    z = np.array([[0.0, 0.0], [0.0, 0.1], [50.0, 0.0], [50.0, 0.1]])
    loss = losses.LiftedStructureLoss(normalize=False)
    value, gradient = value_and_gradient(loss, ids, z, "float32")
    assert value == 0.0
    assert (gradient == 0.0).all()


def test_lifted_structure_does_not_overflow():
    ids, z = batch()
    value, gradient = value_and_gradient(
        losses.LiftedStructureLoss(margin=200.0, normalize=False), ids, 1e3 * z, "float32"
    )
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("margin", [0, -1.0, float("nan"), "1"])
def test_bad_margin(margin):
    with pytest.raises(ValueError, match="margin must be a number above 0. Received: margin="):
        losses.LiftedStructureLoss(margin=margin)
