"""The errata of the papers on the theory page, each with the numbers that show it. NumPy only."""

import numpy as np
import pytest
from scipy.special import logsumexp

RNG_SEED = 0


def softplus(x):
    return np.logaddexp(0, x)


def square(a):
    return (a * a).sum()


@pytest.fixture
def rng():
    return np.random.default_rng(RNG_SEED)


@pytest.fixture
def units(rng):
    """Three classes of four unit vectors, and their similarities."""
    f = rng.normal(size=(12, 8))
    f /= np.linalg.norm(f, axis=1)[:, None]
    return f, f @ f.T, np.repeat(range(3), 4)


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


def test_e4_e5_lemma_1_needs_its_constants(units):
    _, s, g = units
    same = g[:, None] == g
    positive = same & ~np.eye(12, dtype=bool)
    contrastive = ((2 - 2 * s) * same).sum() / 12
    multi = np.mean([np.log1p(np.exp(-2 * (a[p] - 0.5)).sum()) / 2 for a, p in zip(s, positive)])
    assert multi < contrastive
    assert multi >= contrastive / 8 + np.log(4) / 2 + 0.75 * (0.5 - 1)

    def difference(m):
        whole = logsumexp(-2 * (s[0][same[0]] - m))
        return np.log1p(np.exp(-2 * (s[0][positive[0]] - m)).sum()) - whole

    assert difference(1) == pytest.approx(0, abs=1e-12) and abs(difference(0.5)) > 0.01


def test_e6_e7_e8_the_identity_and_the_sign_of_the_gap(rng):
    z, n, d, classes = rng.normal(size=(60, 3)), 60, 3, 4
    y = np.arange(n) % classes
    one_hot = np.eye(classes)[y]
    h = one_hot.T @ z / n

    def log_sum(theta):
        return logsumexp(z @ theta.T, axis=1).mean()

    def softmax(theta):
        return np.exp(z @ theta.T - logsumexp(z @ theta.T, axis=1)[:, None])

    def gap(theta):
        p = softmax(theta)
        c = p.T @ z / n
        lam = min(np.linalg.eigvalsh((z.T * (q - q * q)) @ z / n)[0] for q in p.T)
        ce = log_sum(theta) - (theta * h).sum()
        pce = -square(h) / (2 * lam) + log_sum(c / lam) - square(c) / (2 * lam)
        b = log_sum(c / lam) - log_sum(theta) - (c * (c / lam - theta)).sum()
        expected = lam / 2 * (square(theta - h / lam) - square(theta - c / lam)) - b
        assert ce - pce == pytest.approx(expected)
        return ce - pce

    theta = np.zeros((classes, d))
    assert gap(theta) > 0 > gap(rng.normal(size=(classes, d)))
    for _ in range(3000):
        theta -= (softmax(theta) - one_hot).T @ z / n
    np.testing.assert_allclose(h, softmax(theta).T @ z / n, atol=1e-6)
    assert gap(theta) < 0
    assert (z @ z.T * (y[:, None] == y)).sum() / n**2 == pytest.approx(square(h))

    def second(t):
        theta = t * np.ones((classes, d))
        return log_sum(theta) - 0.05 * square(theta)

    assert second(0) > second(10) > second(100)


@pytest.mark.parametrize(("classes", "below"), [(10, 0.0895), (100, 0.0099)])
def test_e9_spce_of_perfect_unit_vectors_stays_near_log_k(classes, below):
    u = np.eye(classes)[np.arange(5 * classes) % classes]
    logits = u @ (u.T @ u / (5 * classes)).T
    spce = (logsumexp(logits, axis=1) - (logits * u).sum(1)).mean()
    assert np.log(classes) - spce == pytest.approx(below, abs=1e-4)


def test_e16_ice_has_the_scale_and_a_gradient_of_the_anchor(units):
    f = units[0]

    def ice(f):
        return softplus(logsumexp(2 * f[4:] @ f[0]) - 2 * f[0] @ f[1])

    def slope(row):
        step = np.zeros_like(f)
        step[row, 0] = 1e-6
        return (ice(f + step) - ice(f - step)) / 2e-6

    assert slope(1) == pytest.approx(-2 * f[0, 0] * (1 - np.exp(-ice(f))), abs=1e-6)
    assert abs(slope(0)) > 1e-3


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


def test_e20_fixed_statistics_reduce_only_around_beta():
    positive, negative = np.array([1.3, 1.5]), np.array([0.4, 0.6, 0.9])

    def loss(beta):
        def v(x):
            return -np.sign(x) * np.log(np.expm1(abs(x)))

        return softplus(-v(positive - beta)).mean() + softplus(v(negative - beta)).mean()

    assert loss(1) == pytest.approx(positive.mean() - negative.mean()) and loss(0) > 2
