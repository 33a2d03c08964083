"""Properties of the n-pairs and the lifted structure loss."""

import numpy as np
import oracles
import pytest
from backend import value_and_gradient
from batches import batch

from keras_dml import losses

pytestmark = pytest.mark.any_backend


def test_n_pairs_does_not_overflow():
    ids, z = batch(sizes=(3, 3))
    value, gradient = value_and_gradient(losses.NPairsLoss(), ids, 100.0 * z, "float32")
    assert np.isfinite(value) and value > 0
    assert np.isfinite(gradient).all()


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
