"""Properties of the scalable neighborhood component analysis loss."""

import numpy as np
import pytest
from backend import value_and_gradient
from batches import batch

from keras_dml import losses

pytestmark = pytest.mark.any_backend


def test_a_small_temperature_does_not_overflow():
    ids, z = batch()
    value, gradient = value_and_gradient(losses.SNCALoss(1e-4), ids, z, "float32")
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
