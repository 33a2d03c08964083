"""Known answers: an example calculated by hand, and Lemma 1 of the unifying view."""

import math

import keras
import numpy as np
import pytest
import tiers
from backend import parts, value_and_gradient

from keras_dml import layers, losses

pytestmark = pytest.mark.any_backend

# Six images of three classes: the parts of each loss to six digits.
Z = np.array(
    [(1, 0, 0.5), (0.5, 1, 0), (0, 1, 1), (-1, 0.5, 1), (0.5, -1, 1), (1, 1, -0.5)], dtype=float
)
CLASS_IDS = np.array([0, 0, 1, 1, 2, 0])

PROXIES = [(1, 0.5, 0), (0, 1, 0.5), (0.5, -1, 0.5)]
TWO_CENTERS = [
    (1, 0.5, 0), (0.5, 1, -1), (0, 1, 0.5), (-1, 0, 1), (0.5, -1, 0.5), (0, -1, 1)
]  # fmt: skip
HARD, SOFT = ({"centers": 2, "pooling": pooling} for pooling in ("max", "soft"))
# Name, arguments, arguments of the head (None: a loss of embeddings), T, C, and the loss.
CASES = [
    ("supcon", {}, None, -6.311709, 7.769675, 1.457966),
    ("nt_xent", {}, None, -8.745527, 9.853679, 1.108152),
    ("circle", {}, None, 6.356885, 12.135489, 18.492374),
    ("margin", {}, None, 0.026710, 0.229095, 0.255806),
    ("margin", {"sampling": "all"}, None, 0.038324, 0.165799, 0.204123),
    ("smooth_ap", {}, None, 1.401057, -1.284392, 0.116665),
    ("smooth_ap", {"query_in_database": True}, None, 1.294679, -1.239121, 0.055559),
    ("tcm", {}, None, 0.287813, 0.114370, 0.402183),
    ("recall_at_k", {}, None, 0.153198, 0.045352, 0.198550),
    ("recall_at_k", {"query_in_database": True}, None, 0.153198, 0.177647, 0.330845),
    ("norm_softmax", {}, {}, -16.639915, 16.756533, 0.116617),
    ("cosface", {}, {}, -30.847729, 35.624087, 4.776358),
    ("arcface", {}, {}, -31.027110, 36.562150, 5.535040),
    ("arcface", {"margin": 1.6, "scale": 8.0}, {}, 4.286612, 2.527925, 6.814536),
    ("subcenter_arcface", {}, HARD, -36.671536, 42.206577, 5.535040),
    ("soft_triple", {}, SOFT, -17.451180, 17.625038, 0.173858),
    ("proxy_nca", {}, {}, 3.024076, -2.906725, 0.117351),
    ("proxy_nca", {"partition": "negatives"}, {}, 3.024076, -12.474919, -9.450843),
    ("proxy_anchor", {}, {}, 0.000000, 20.948822, 20.948822),
    ("proxy_anchor", {"scale": 4.0}, {}, 0.113847, 2.919638, 3.033485),
]


@tiers.thorough_elsewhere
@pytest.mark.parametrize(
    ("name", "arguments", "of_head", "tightness", "contrastive", "value"), CASES
)
def test_parts_and_value(name, arguments, of_head, tightness, contrastive, value):
    given = Z
    if of_head is not None:
        head = layers.ProxyHead(3, dtype="float64", **of_head)
        head.build((None, 3))
        head.set_weights([np.array(PROXIES if head.centers == 1 else TWO_CENTERS)])
        given = keras.ops.convert_to_numpy(head(Z))
    loss = losses.get(name, dtype="float64", **arguments)
    computed = [part.mean() for part in parts(loss, CLASS_IDS, given)]
    assert computed == pytest.approx([tightness, contrastive], abs=1e-6)
    assert value_and_gradient(loss, CLASS_IDS, given)[0] == pytest.approx(value, abs=1e-6)


def test_the_regularizer_of_centers():
    regularizer = layers.CenterRegularizer(2)
    proxies = keras.ops.convert_to_tensor(np.array(TWO_CENTERS))
    assert float(regularizer(proxies)) == pytest.approx(0.086188, abs=1e-6)


# Lemma 1 with its constants: on l2-normalized embeddings of balanced classes, the parts of the
# losses bound each other. K classes of s images, n = K·s, N = n − s negatives for each image.
# Boudiaf et al. 2020, Eq. 8 and the proofs of the supplement, A.1.
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


@tiers.thorough_elsewhere
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
