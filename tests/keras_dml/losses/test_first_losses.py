"""Properties of cross-entropy, contrastive, and multi-similarity loss."""

import keras
import numpy as np
import pytest
from backend import compiled, value_and_gradient
from batches import batch

from keras_dml import losses

pytestmark = pytest.mark.any_backend


def test_smoothing_is_keras_label_smoothing_rescaled():
    ids, logits = batch(dimensions=7)
    keras_loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.2 * 7 / 6)
    expected = float(keras_loss(np.eye(7)[ids], logits))
    loss = losses.CrossEntropyLoss(label_smoothing=0.2)
    assert float(loss(ids, logits)) == pytest.approx(expected, 1e-6)


def test_a_class_id_without_logit_gives_nan():
    loss, ids, logits = (
        losses.CrossEntropyLoss(reduction=None),
        np.array([0, 4, 1]),
        np.zeros((3, 4)),
    )
    with pytest.raises(ValueError, match="y_true must be class ids from 0 to 3.*4 in row 1"):
        loss(ids, logits)
    if keras.backend.backend() != "torch":  # PyTorch has no graphs
        np.testing.assert_array_equal(
            np.isnan(np.asarray(compiled(loss)(ids, logits))), [False, True, False]
        )


def test_cross_entropy_needs_two_classes():
    with pytest.raises(ValueError, match="at least 2 classes"):
        losses.CrossEntropyLoss()(np.array([0, 0]), np.ones((2, 1)))


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


def test_positives_within_their_margin_have_no_gradient():
    ids, z = np.array([0, 0, 1]), np.array([[0.0, 0.0], [0.0, 0.3], [0.0, 5.0]])
    for power in (1, 2):
        loss = losses.ContrastiveLoss(positive_margin=0.4, power=power)
        value, gradient = value_and_gradient(loss, ids, z)
        assert value == 0.0 and (gradient == 0.0).all()


def test_a_zero_row_has_no_gradient_through_the_normalization():
    ids, z = batch()
    z[2] = 0.0
    for loss in (losses.MultiSimilarityLoss(), losses.ContrastiveLoss(normalize=True)):
        _, gradient = value_and_gradient(loss, ids, z, "float32")
        assert (gradient[2] == 0.0).all()


def test_multi_similarity_does_not_overflow():
    z = np.array([[1.0, 0.0], [1.0, 1e-3], [1.0, 0.0], [-1.0, 0.0]])
    loss = losses.MultiSimilarityLoss(alpha=500.0, beta=5000.0)
    value, gradient = value_and_gradient(loss, np.array([0, 1, 2, 0]), z, "float32")
    assert np.isfinite(gradient).all()
    # The largest term dominates: positives at -1 (anchors 0 and 3) and negatives at +1.
    assert value == pytest.approx((2 * 1.5 + 3 * 0.5) / 4, rel=1e-2)
