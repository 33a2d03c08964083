"""A loss over prefixes: the weighted sum of its values for the prefixes."""

import numpy as np
import pytest
from backend import value_and_gradient
from batches import batch

from keras_dml import losses

pytestmark = pytest.mark.any_backend


@pytest.mark.parametrize(
    "inner",
    [
        losses.ContrastiveLoss(dtype="float64"),
        losses.SimplifiedPairwiseCrossEntropyLoss(dtype="float64"),
    ],
    ids=lambda loss: loss.name,
)
def test_value_and_gradient_are_the_weighted_sums_over_prefixes(inner):
    ids, z = batch(seed=1)
    dims, weights = (1, 4, 6), (0.5, 2.0, 1.0)
    value, gradient = value_and_gradient(
        losses.MatryoshkaLoss(inner, dims, weights=weights), ids, z
    )
    expected, slopes = 0.0, np.zeros_like(z)
    for length, weight in zip(dims, weights):
        of_prefix, slope = value_and_gradient(inner, ids, z[:, :length])
        expected += weight * of_prefix
        slopes[:, :length] += weight * slope
    assert value == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(gradient, slopes, atol=1e-12)


def test_groups_work_if_the_loss_takes_them():
    groups = np.array([[1, 0], [1, 1], [0, 1]])
    z = batch()[1][:3]
    inner = losses.SimplifiedPairwiseCrossEntropyLoss()
    expected = float(inner(groups, z[:, :2])) + float(inner(groups, z))
    value = float(losses.MatryoshkaLoss(inner, (2, 6))(groups, z))
    assert value == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("dims", "weights", "message"),
    [
        ((), None, "dims must be one or more whole numbers"),
        ((3, 3, 6), None, r"dims must be increasing.* but got \(3, 3, 6\)"),
        ((3, 6), (1.0,), r"weights must be one number for each of dims=\(3, 6\), but got \(1.0,\)"),
        ((3, 6), (1.0, -1.0), r"weights\[1\] must be a number of at least 0"),
        ((3, 7), None, r"dims must be .* end with d = 6.* but got \(3, 7\)"),
    ],
)
def test_bad_arguments(dims, weights, message):
    ids, z = batch()
    with pytest.raises(ValueError, match=message):
        losses.MatryoshkaLoss(losses.SNCALoss(), dims, weights=weights)(ids, z)


@pytest.mark.parametrize(
    "loss",
    [losses.ArcFaceLoss(), losses.MarginLoss(boundaries=1), "snca"],
    ids=["cosines", "boundaries", "a name"],
)
def test_losses_without_prefixes(loss):
    with pytest.raises(TypeError, match="loss must be a .*EmbeddingLoss over only embeddings"):
        losses.MatryoshkaLoss(loss, (2, 4))
