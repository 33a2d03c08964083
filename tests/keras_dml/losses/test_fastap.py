"""Properties of FastAP."""

import math

import numpy as np
import oracles
import pytest
from batches import batch

from keras_dml import losses

pytestmark = pytest.mark.any_backend


def log_bound_contrastive(class_ids, z, num_bins=10):
    """Compute the second expectation of Eq. 38 by loops, for anchors that all have positives."""
    f, width, values = oracles.unit(z), 4.0 / num_bins, []
    for i in range(len(f)):
        near, everyone = np.zeros(num_bins + 1), np.zeros(num_bins + 1)
        for j in range(len(f)):
            if j != i:
                at = sum((f[i] - f[j]) ** 2) / width
                weights = [max(0.0, 1 - abs(at - b)) for b in range(num_bins + 1)]
                everyone += weights
                near += np.multiply(weights, class_ids[j] == class_ids[i])
        values.append(
            sum(
                near[b] / near.sum() * math.log(sum(everyone[: b + 1]) / everyone.sum())
                for b in range(num_bins + 1)
                if near[b] > 0
            )
        )
    return np.array(values)


@pytest.mark.parametrize("num_bins", [1, 4, 10])
def test_the_parts_are_the_log_bounds_minus_their_slack(num_bins):
    ids, z = batch(seed=4, sizes=(4, 3, 2))
    loss = losses.FastAPLoss(num_bins=num_bins, reduction=None, dtype="float64")
    tightness, contrastive = (np.asarray(part) for part in loss.parts(ids, z))
    value = np.asarray(loss(ids, z))
    bound = tightness + log_bound_contrastive(ids, z, num_bins)
    slack = log_bound_contrastive(ids, z, num_bins) - contrastive
    assert (bound >= -np.log1p(-value) - 1e-12).all()
    assert (slack >= -1e-12).all()
    assert slack.max() > 1e-3


def test_the_tightness_only_depends_on_the_positives():
    ids, z = batch(sizes=(4, 3), dimensions=5)
    loss = losses.FastAPLoss(dtype="float64")
    before, _ = loss.parts(ids, z)
    z[ids == 1] *= -1
    after, _ = loss.parts(ids, z)
    kept = ids == 0
    np.testing.assert_allclose(np.asarray(after)[kept], np.asarray(before)[kept])


def test_perfect_and_inverted_rankings():
    ids = np.array([0, 0, 1, 1])
    together = np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])
    assert float(losses.FastAPLoss()(ids, together)) == pytest.approx(0.0, abs=1e-6)
    # The only positive is opposite and a negative on top: one of three at 4, so precision 1/3.
    apart = np.array([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    assert float(losses.FastAPLoss()(ids, apart)) == pytest.approx(2 / 3, abs=1e-6)
