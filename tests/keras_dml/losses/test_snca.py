"""Properties of the scalable neighborhood component analysis loss."""

import numpy as np
import pytest
from backend import value_and_gradient
from batches import batch

from keras_dml import losses

pytestmark = pytest.mark.any_backend


def test_it_is_minus_the_log_probability_of_a_neighbor_of_the_class():
    """Anchors 0 and 1 have similarity 0.6 to each other, and 0 and 0.8 to the third image."""
    z = np.array([[2.0, 0.0], [0.6, 0.8], [0.0, 3.0]])
    each = np.asarray(losses.SNCALoss(0.5, reduction=None, dtype="float64")(np.array([0, 0, 1]), z))
    first = -np.log(np.exp(1.2) / (np.exp(1.2) + np.exp(0.0)))
    second = -np.log(np.exp(1.2) / (np.exp(1.2) + np.exp(1.6)))
    np.testing.assert_allclose(each, [1.5 * first, 1.5 * second, 0.0], rtol=1e-12)


def test_images_without_positives_are_candidates_but_not_in_the_mean():
    ids, z = batch(sizes=(4, 3, 1))
    loss = losses.SNCALoss(0.3, dtype="float64", reduction=None)
    each = np.asarray(loss(ids, z))
    assert each[ids == 2] == 0.0
    assert (each[ids != 2] > 0).all()
    assert not np.allclose(each[ids != 2], np.asarray(loss(ids[ids != 2], z[ids != 2])) * 8 / 7)


def test_the_gradient_ignores_the_length_of_the_embeddings():
    ids, z = batch()
    _, gradient = value_and_gradient(losses.SNCALoss(dtype="float64"), ids, z)
    np.testing.assert_allclose((gradient * z).sum(axis=1), 0.0, atol=1e-12)


def test_a_small_temperature_does_not_overflow():
    ids, z = batch()
    value, gradient = value_and_gradient(losses.SNCALoss(1e-4), ids, z, "float32")
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
