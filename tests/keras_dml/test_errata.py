"""Errata of the papers on the theory page that no other test or cell of that page shows."""

import numpy as np
import pytest
from scipy.special import logsumexp

from keras_dml import losses


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_e1_scaling_adds_twice_the_logarithm(rng):
    z, d, off = rng.normal(size=(60, 3)), 3, ~np.eye(60, dtype=bool)

    def printed(z):
        return d / (60 * 59) * np.log(((z[:, None] - z) ** 2).sum(-1)[off]).sum()

    assert printed(2 * z) - printed(z) == pytest.approx(2 * d * np.log(2))


def test_e2_contrastive_tightness_is_below_the_entropy(rng):
    pair = 0.5 * rng.normal(size=(400, 2, 50))
    tightness = ((pair[:, 0] - pair[:, 1]) ** 2).sum() / 400
    exact = 25 * np.log(2 * np.pi * np.e * 0.25)
    assert tightness < exact < 0.5 * 50 * 0.25 + 25 * np.log(2 * np.pi)


def test_e5_the_sum_with_the_anchor_needs_the_base_1(rng):
    similarities = rng.uniform(-1, 1, size=3)

    def difference(base):
        whole = logsumexp(-2 * (np.append(similarities, 1) - base))
        return np.log1p(np.exp(-2 * (similarities - base)).sum()) - whole

    assert difference(1) == pytest.approx(0, abs=1e-12) and abs(difference(0.5)) > 0.01


@pytest.mark.parametrize(("classes", "below"), [(10, 0.0895), (100, 0.0099)])
def test_e9_spce_of_perfect_unit_vectors_stays_near_log_k(classes, below):
    ids = np.arange(5 * classes) % classes
    value = losses.SimplifiedPairwiseCrossEntropyLoss(dtype="float64")(ids, np.eye(classes)[ids])
    assert np.log(classes) - float(value) == pytest.approx(below, abs=1e-4)


def test_e19_the_bound_of_rankmi_needs_five_classes():
    def twice_divergence(p, q):
        pairs = zip((*p, *q), (*q, *p))
        return sum(a * np.log(2 * a / (a + b)) for a, b in pairs if a)

    joint, other = (0.3, 0.7), (0, 1)
    bound = sum(a * np.log(a / (a / 4 + 0.75 * b)) for a, b in zip(joint, other))
    assert twice_divergence(joint, other) > bound
    u, k = np.exp(np.linspace(-30, 30, 10001)), 5
    left = u * np.log(k * u / (u + k - 1)) - (1 - 1 / k) * (u - 1)
    assert (left >= u * np.log(u) - (u + 1) * np.log((u + 1) / 2) - 1e-9 * u).all()


def test_e15_many_negatives_bound_the_ratio_of_two_positives():
    """Two positives of an anchor at similarity 1 and −1, and 178 negatives at one similarity."""

    def weight(positive, negative):
        """Return the weight 1 - p of a positive (Eq. 9)."""
        return 1.0 - np.exp(positive) / (np.exp(positive) + 178 * np.exp(negative))

    for negative, bound in ((-1.0, (np.e**2 + 178) / 179), (0.0, 1.013)):
        ratio = weight(-1.0, negative) / weight(1.0, negative)
        assert ratio == pytest.approx(bound, abs=5e-4)
