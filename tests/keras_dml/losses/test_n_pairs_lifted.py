"""Properties of the n-pairs and the lifted structure loss."""

import numpy as np
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


def test_lifted_structure_does_not_overflow():
    ids, z = batch()
    value, gradient = value_and_gradient(
        losses.LiftedStructureLoss(margin=200.0, normalize=False), ids, 1e3 * z, "float32"
    )
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
