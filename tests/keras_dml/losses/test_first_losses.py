"""Properties of cross-entropy, contrastive, and multi-similarity loss."""

import keras
import numpy as np
import pytest
from backend import compiled, value_and_gradient
from batches import batch

from keras_dml import losses

pytestmark = pytest.mark.any_backend


def test_class_ids_without_logits():
    loss, ids, logits = (
        losses.CrossEntropyLoss(reduction=None),
        np.array([0, 4, 1]),
        np.zeros((3, 4)),
    )
    with pytest.raises(ValueError, match="y_true must be class ids from 0 to 3.*4 in row 1"):
        loss(ids, logits)
    with pytest.raises(ValueError, match="at least 2 classes"):
        loss(np.array([0, 0]), np.ones((2, 1)))
    if keras.backend.backend() != "torch":  # PyTorch has no graphs
        np.testing.assert_array_equal(
            np.isnan(np.asarray(compiled(loss)(ids, logits))), [False, True, False]
        )


def test_coincident_negatives_cost_the_whole_margin_without_a_gradient():
    loss = losses.ContrastiveLoss(margin=1.5)
    value, gradient = value_and_gradient(loss, np.array([0, 1]), np.full((2, 7), 123.4), "float32")
    assert value == pytest.approx(1.5**2)
    assert (gradient == 0.0).all()


@pytest.mark.parametrize("power", [1, 2])
def test_coincident_positives_below_a_margin_of_0_cost_it_without_a_gradient(power):
    loss = losses.ContrastiveLoss(positive_margin=-0.5, power=power)
    value, gradient = value_and_gradient(loss, np.array([4, 4]), np.full((2, 7), 123.4), "float32")
    assert value == pytest.approx(0.5**power)
    assert (gradient == 0.0).all()


def test_a_zero_row_has_no_gradient_through_the_normalization():
    ids, z = batch()
    z[2] = 0.0
    for loss in (losses.MultiSimilarityLoss(), losses.ContrastiveLoss(normalize=True)):
        _, gradient = value_and_gradient(loss, ids, z, "float32")
        assert (gradient[2] == 0.0).all()
