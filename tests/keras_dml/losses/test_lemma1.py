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


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("num_classes", "size", "dimensions"), SIZES)
def test_the_parts_bound_each_other(num_classes, size, dimensions, seed):
    ids, z = balanced(num_classes, size, dimensions, seed)
    n, positives, negatives = len(z), size - 1, len(z) - size
    contrastive = mean_part("T", "contrastive", ids, z)
    # C = −(1/n) Σ_i Σ_{j∈N_i} D_ij²
    spread = -np.sum((ids[:, None] != ids) * ((z[:, None] - z) ** 2).sum(axis=-1)) / n
    # The table sums the center loss over the images.
    center = n * mean_part("T", "center", ids, z)
    assert contrastive == pytest.approx(4 / num_classes * center, rel=1e-12)
    for sigma in (SIGMA, 0.5):
        tightness, contrast = (
            mean_part(part, "snca", ids, z, temperature=sigma) for part in ("T", "C")
        )
        bound = contrastive / (2 * sigma * positives) - 1 / sigma - math.log(positives)
        assert tightness <= bound + 1e-9
        if positives == 1:  # Jensen's inequality over a single term
            assert tightness == pytest.approx(bound, rel=1e-9)
        bound = spread / (2 * sigma * negatives) + math.log(negatives) + 1 / sigma
        assert contrast >= bound - 1e-9
    for base in (BASE, -0.2):
        bound = contrastive / (2 * size) + math.log(size) / ALPHA + positives / size * (base - 1)
        tightness = mean_part("T", "multi_similarity", ids, z, alpha=ALPHA, beta=BETA, base=base)
        assert tightness >= bound - 1e-9
    bound = spread / (2 * negatives) + math.log(negatives) / BETA + 1 - BASE
    contrast = mean_part("C", "multi_similarity", ids, z, alpha=ALPHA, beta=BETA, base=BASE)
    assert contrast >= bound - 1e-9
    for lam in (0.05, 1.0):
        expected = contrastive / (4 * lam * n) - 1 / (2 * lam * num_classes)
        assert mean_part("T", "pce", ids, z, lam=lam) == pytest.approx(expected, rel=1e-10)


def test_the_raw_losses_violate_the_ordering():
    """Without the constants, T_contrastive ≤ T_MS fails: the bounds above are not vacuous."""
    ids, z = balanced(4, 8, 5, seed=0)
    assert mean_part("T", "contrastive", ids, z) > mean_part("T", "multi_similarity", ids, z)
