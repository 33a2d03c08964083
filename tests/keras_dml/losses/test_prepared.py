"""Embeddings as losses and strategies get them: unit length, and how nonfinite values appear."""

import numpy as np
import pytest
from backend import value_and_gradient
from keras import ops

from keras_dml import losses, mining
from keras_dml._pairwise.arithmetic import are_finite
from keras_dml._pairwise.pairs import normalize

pytestmark = pytest.mark.any_backend

RNG = np.random.default_rng(0)
LABELS = np.array([3, 0, 0, 1, 3, 1, 0, 2])
Z = RNG.normal(size=(8, 5))
LOSSES = {
    "contrastive": (losses.ContrastiveLoss, {"margin": 4.0}),
    "contrastive, means": (losses.ContrastiveLoss, {"pair_reduction": "mean", "margin": 4.0}),
    "contrastive, two margins": (losses.ContrastiveLoss, {"positive_margin": 0.5, "margin": 4.0}),
    "contrastive, below 0": (
        losses.ContrastiveLoss,
        {"positive_margin": -0.5, "power": 3, "margin": 4.0},
    ),
    "snca": (losses.SNCALoss, {}),
    "snca, beyond float32": (losses.SNCALoss, {"temperature": 1e-3}),
    "supcon": (losses.SupConLoss, {}),
    "multi_similarity": (losses.MultiSimilarityLoss, {"beta": 20.0}),
    "multi_similarity, beyond float32": (losses.MultiSimilarityLoss, {"beta": 500.0}),
    "circle": (losses.CircleLoss, {}),
    "circle, wide": (losses.CircleLoss, {"scale": 20.0, "margin": 1.5}),
    "circle, beyond float32": (losses.CircleLoss, {"scale": 256.0, "margin": 0.25}),
    "nt_xent": (losses.NTXentLoss, {}),
    "nt_xent, beyond float32": (losses.NTXentLoss, {"temperature": 1e-3}),
    "fastap": (losses.FastAPLoss, {}),
    "margin": (losses.MarginLoss, {}),
    "margin, all": (losses.MarginLoss, {"sampling": "all", "nu": 0.2}),
    "margin, beyond the negatives": (losses.MarginLoss, {"margin": 0.4, "beta": 1.5}),
    "margin, learned": (losses.MarginLoss, {"boundaries": 1, "nu": 0.2, "margin": 1.5}),
    "tcm": (losses.ThresholdConsistentMarginLoss, {"negative_margin": -0.2}),
}


def test_a_strategy_gets_embeddings_of_unit_length():
    unit = Z / np.linalg.norm(Z, axis=-1, keepdims=True)
    seen = []

    class Looks(mining.Mining):
        def masks(self, similarities, pairs):
            seen.extend([similarities, pairs.similarities(), 1 - pairs.squared_distances() / 2])
            return pairs.positive, pairs.negative

    losses.NTXentLoss(temperature=0.03, dtype="float64", mining=Looks())(LABELS, Z)
    assert len(seen) == 3
    for similarities in seen:
        np.testing.assert_allclose(np.asarray(similarities), unit @ unit.T, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_a_subclass_that_overrides_prepare_gives_the_same_loss(name):
    loss, arguments = LOSSES[name]

    class Prepared(loss):
        def prepare(self, embeddings):
            return super().prepare(embeddings)

    expected = loss(dtype="float64", **arguments)(LABELS, Z)
    found = Prepared(dtype="float64", **arguments)(LABELS, Z)
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-5)


@pytest.mark.parametrize("length", [1e-37, 1e-25, 1e-12, 1.0, 1e12, 1e25, 1e37])
@pytest.mark.parametrize("among", [1.0, 1e30])
def test_rows_of_any_length_have_length_1(length, among):
    """Includes batches in which another row triggers the more careful computation."""
    x = np.stack([np.array([3.0, 0.0, 4.0]) * length, np.array([0.0, 1.0, 0.0]) * among])
    unit = np.asarray(normalize(ops.convert_to_tensor(x, dtype="float32")))
    np.testing.assert_allclose(unit, [[0.6, 0, 0.8], [0, 1, 0]], rtol=1e-6)


@pytest.mark.parametrize(
    "number, sound",
    [(3e38, True), (-3e38, True), (np.inf, False), (-np.inf, False), (np.nan, False)],
)
def test_large_numbers_are_valid_and_infinite_ones_are_not(number, sound):
    x = np.full((4, 300), number, "float32")
    x[:2] = 1.0
    assert bool(are_finite(ops.convert_to_tensor(x))) == sound


@pytest.mark.parametrize("rows", [17, 18, 33, 65])
def test_equal_rows_are_normalized_to_equal_numbers(rows):
    """If vectorized and scalar code rounded differently, the distance would not be 0."""
    x = np.repeat(RNG.normal(size=(1, 64)), rows, axis=0)
    unit = np.asarray(normalize(ops.convert_to_tensor(x, dtype="float32")))
    assert (unit == unit[:1]).all()


@pytest.mark.parametrize("name", ["contrastive", "triplet", "margin", "multi_similarity"])
def test_the_gradient_of_duplicate_images_matches_float64(name):
    ids, z = np.arange(40) // 4, RNG.normal(size=(40, 32)).astype("float32")
    z[1:20:4] = z[0:20:4]
    _, gradient = value_and_gradient(losses.get(name), ids, z, "float32")
    _, exact = value_and_gradient(losses.get(name, dtype="float64"), ids, z)
    np.testing.assert_allclose(gradient, exact, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("name", ["contrastive", "triplet", "margin", "lifted_structure", "fastap"])
def test_a_collapsed_batch_has_no_gradient(name):
    ids, z = np.arange(33) // 2, np.repeat(RNG.normal(size=(1, 64)), 33, axis=0)
    _, gradient = value_and_gradient(losses.get(name), ids, z, "float32")
    np.testing.assert_allclose(gradient, 0.0, atol=1e-6)
