"""Lemma 1 of the unifying view with its constants: the parts of the losses bound each other.

On l2-normalized embeddings of balanced classes: K classes of s images, n = K·s, N = n − s negatives
for each image. Boudiaf et al. 2020, Eq. 8 and the proofs of the supplement, A.1.
"""

import math

import numpy as np
import pytest
from backend import parts

from keras_dml import losses

pytestmark = pytest.mark.any_backend

SIGMA, ALPHA, BETA, BASE = 0.05, 2.0, 50.0, 0.5
SIZES = [(5, 2, 16), (3, 8, 5)]  # K, s, d
any_batch = pytest.mark.parametrize("seed", [0, 1])
any_size = pytest.mark.parametrize(("num_classes", "size", "dimensions"), SIZES)


def balanced(num_classes, size, dimensions, seed):
    """Return unit embeddings: tight classes for odd seeds, meaningless classes for even seeds."""
    rng = np.random.default_rng(seed)
    ids = rng.permutation(np.repeat(np.arange(num_classes), size))
    z = rng.normal(size=(len(ids), dimensions))
    if seed % 2:
        z = 0.2 * z + rng.normal(size=(num_classes, dimensions))[ids]
    return ids, z / np.linalg.norm(z, axis=1, keepdims=True)


def mean_part(part, name, ids, z, **arguments):
    loss = losses.get(name, dtype="float64", **arguments)
    return float(np.mean(parts(loss, ids, z)[("T", "C").index(part)]))


def negative_spread(ids, z):
    """C = −(1/n) Σ_i Σ_{j∈N_i} D_ij²."""
    apart = [
        ((z[i] - z[j]) ** 2).sum() for i in range(len(z)) for j in range(len(z)) if ids[i] != ids[j]
    ]
    return -sum(apart) / len(z)


@any_batch
@any_size
def test_contrastive_tightness_is_center_tightness(num_classes, size, dimensions, seed):
    ids, z = balanced(num_classes, size, dimensions, seed)
    contrastive = mean_part("T", "contrastive", ids, z)
    center = len(z) * mean_part("T", "center", ids, z)  # the table sums over the images
    assert contrastive == pytest.approx(4 / num_classes * center, rel=1e-12)


@any_batch
@any_size
@pytest.mark.parametrize("sigma", [SIGMA, 0.5])
def test_snca_tightness_is_bounded_by_contrastive(num_classes, size, dimensions, seed, sigma):
    ids, z = balanced(num_classes, size, dimensions, seed)
    positives = size - 1
    bound = mean_part("T", "contrastive", ids, z) / (2 * sigma * positives)
    bound -= 1 / sigma + math.log(positives)
    tightness = mean_part("T", "snca", ids, z, temperature=sigma)
    assert tightness <= bound + 1e-9
    if positives == 1:  # Jensen's inequality over a single term
        assert tightness == pytest.approx(bound, rel=1e-9)


@any_batch
@any_size
@pytest.mark.parametrize("base", [BASE, -0.2])
def test_multi_similarity_tightness_bounds_contrastive(num_classes, size, dimensions, seed, base):
    ids, z = balanced(num_classes, size, dimensions, seed)
    bound = mean_part("T", "contrastive", ids, z) / (2 * size)
    bound += math.log(size) / ALPHA + (size - 1) / size * (base - 1)
    tightness = mean_part("T", "multi_similarity", ids, z, alpha=ALPHA, beta=BETA, base=base)
    assert tightness >= bound - 1e-9


@any_batch
@any_size
@pytest.mark.parametrize("lam", [0.05, 1.0])
def test_pairwise_cross_entropy_tightness_is_contrastive(num_classes, size, dimensions, seed, lam):
    ids, z = balanced(num_classes, size, dimensions, seed)
    expected = mean_part("T", "contrastive", ids, z) / (4 * lam * len(z))
    expected -= 1 / (2 * lam * num_classes)
    assert mean_part("T", "pce", ids, z, lam=lam) == pytest.approx(expected, rel=1e-10)


@any_batch
@any_size
def test_multi_similarity_contrast_bounds_the_spread(num_classes, size, dimensions, seed):
    ids, z = balanced(num_classes, size, dimensions, seed)
    negatives = len(z) - size
    bound = negative_spread(ids, z) / (2 * negatives) + math.log(negatives) / BETA + 1 - BASE
    contrast = mean_part("C", "multi_similarity", ids, z, alpha=ALPHA, beta=BETA, base=BASE)
    assert contrast >= bound - 1e-9


@any_batch
@any_size
@pytest.mark.parametrize("sigma", [SIGMA, 0.5])
def test_snca_contrast_bounds_the_spread(num_classes, size, dimensions, seed, sigma):
    ids, z = balanced(num_classes, size, dimensions, seed)
    negatives = len(z) - size
    bound = negative_spread(ids, z) / (2 * sigma * negatives) + math.log(negatives) + 1 / sigma
    assert mean_part("C", "snca", ids, z, temperature=sigma) >= bound - 1e-9


def test_parts_of_coincident_embeddings():
    """Coincident embeddings have known values."""
    ids, z = np.repeat([0, 1], 3), np.tile([[1.0, 0.0]], (6, 1))
    assert mean_part("T", "pce", ids, z, lam=1.0) == pytest.approx(-1 / 4)
    assert mean_part("T", "snca", ids, z, temperature=SIGMA) == pytest.approx(-math.log(2) - 20)
    at_base_one = mean_part("T", "multi_similarity", ids, z, alpha=ALPHA, beta=BETA, base=1.0)
    assert at_base_one == pytest.approx(math.log(3) / ALPHA)
    contrast = mean_part("C", "multi_similarity", ids, z, alpha=ALPHA, beta=BETA, base=0.5)
    assert contrast == pytest.approx(math.log(3) / BETA + 0.5)


def test_the_raw_losses_violate_the_ordering():
    """Without the constants, T_contrastive ≤ T_MS fails: the bounds above are not vacuous."""
    ids, z = balanced(4, 8, 5, seed=0)
    assert mean_part("T", "contrastive", ids, z) > mean_part("T", "multi_similarity", ids, z)
