"""Gradients that take no transposition, where each anchor has all others for its candidates."""

import numpy as np
import pytest
from backend import value_and_gradient
from keras import ops

from keras_dml import losses, mining, positives
from keras_dml.close_pairs import squared_distances
from keras_dml.gram import gram, mirrored_gram, mirrored_log_sum_exp, mirrored_sums
from keras_dml.losses.base import is_sound
from keras_dml.pairs import normalize

pytestmark = pytest.mark.any_backend

RNG = np.random.default_rng(0)
LABELS = np.array([3, 0, 0, 1, 3, 1, 0, 2])
WEIGHTS = RNG.uniform(0.1, 2.0, size=8)
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
    "snca, beyond float32": (losses.SNCALoss, {"sigma": 1e-3}),
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


def as_weights(z):
    return ops.convert_to_tensor(WEIGHTS, dtype=z.dtype)


def every_pair(similarities, positive, negative):
    return positive, negative


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("part", [0, 1, None])
def test_they_are_those_of_pairs_that_a_function_has_left_all_of(name, part):
    loss, arguments = LOSSES[name]

    def weighed(mining):
        made = loss(reduction=None, mining=mining, dtype="float64", **arguments)

        def of(labels, z):
            values = made(labels, z) if part is None else made.parts(labels, z)[part]
            return ops.sum(values * as_weights(z))

        return value_and_gradient(of, LABELS, Z)

    value, gradient = weighed(None)
    expected, expected_gradient = weighed(every_pair)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    scale = np.abs(expected_gradient).max()
    assert scale > 0
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("mining", [None, every_pair])
def test_nt_xent_looks_at_few_positives_by_themselves(monkeypatch, mining):
    def found():
        loss = losses.NTXentLoss(reduction=None, mining=mining)
        return value_and_gradient(
            lambda labels, z: ops.sum(loss(labels, z) * as_weights(z)), LABELS, Z, "float32"
        )

    value, gradient = found()
    monkeypatch.setattr(positives, "FEW_POSITIVES", 1)
    expected, expected_gradient = found()
    assert expected > 0
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 7.0])
def test_sums_of_mirrored_products(scale):
    def mirrored(_, x):
        return ops.sum(as_weights(x) * mirrored_sums(ops.exp(mirrored_gram(x, scale / 9))))

    def plainly(_, x):
        return ops.sum(as_weights(x) * ops.sum(ops.exp(scale / 9 * gram(x)), axis=-1))

    value, gradient = value_and_gradient(mirrored, LABELS, Z)
    expected, expected_gradient = value_and_gradient(plainly, LABELS, Z)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4)


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0, 1e5])  # logarithms near each other, and far
def test_logarithms_of_mirrored_products(scale):
    def of(logarithms):
        def total(_, x):
            return ops.sum(as_weights(x) * logarithms(x))

        return value_and_gradient(total, LABELS, Z)

    value, gradient = of(lambda x: mirrored_log_sum_exp(mirrored_gram(x, scale)))
    expected, expected_gradient = of(lambda x: ops.logsumexp(scale * gram(x), axis=-1))
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    largest = np.abs(expected_gradient).max()
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-5 * largest)


def test_a_strategy_sees_pairs_of_length_1_whatever_length_they_have():
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
def test_a_subclass_that_prepares_embeddings_itself_has_their_length(name):
    loss, arguments = LOSSES[name]

    class Prepared(loss):
        def prepare(self, embeddings):
            return super().prepare(embeddings)

    expected = loss(dtype="float64", **arguments)(LABELS, Z)
    found = Prepared(dtype="float64", **arguments)(LABELS, Z)
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-5)


@pytest.mark.parametrize("slowly", [False, True])
def test_both_places_together_and_apart(monkeypatch, slowly):
    monkeypatch.setattr("keras_dml.gram._transposes_slowly", lambda matrix: slowly)
    upstream = RNG.normal(size=(8, 8)).astype("float32")
    _, gradient = value_and_gradient(
        lambda _, x: ops.sum(ops.convert_to_tensor(upstream) * gram(x)), LABELS, Z, "float32"
    )
    np.testing.assert_allclose(gradient, (upstream + upstream.T) @ Z, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("twins", [False, True])
def test_sums_of_mirrored_distances(twins):
    z = Z.copy()
    if twins:  # whose distances are taken by themselves
        z[1], z[3] = z[0] + 1e-9, z[2]

    def of(mirrored):
        def total(_, x):
            squares = squared_distances(x, x, mirrored=mirrored)
            sums = mirrored_sums(squares) if mirrored else ops.sum(squares, axis=-1)
            return ops.sum(as_weights(x) * sums)

        return value_and_gradient(total, LABELS, z)

    (value, gradient), (expected, expected_gradient) = of(True), of(False)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-5)


def test_pairs_of_a_mining_strategy_are_not_complete():
    z = ops.convert_to_tensor(Z, dtype="float32")
    loss = losses.SNCALoss(mining=mining.Hard())
    assert losses.SNCALoss().pairs_of(ops.convert_to_tensor(LABELS), z).complete
    assert not loss.pairs_of(ops.convert_to_tensor(LABELS), z).complete


@pytest.mark.parametrize("length", [1e-37, 1e-25, 1e-12, 1.0, 1e12, 1e25, 1e37])
@pytest.mark.parametrize("among", [1.0, 1e30])
def test_rows_of_any_length_have_length_1(length, among):
    """Also where another row of the batch makes all be looked at more closely."""
    x = np.stack([np.array([3.0, 0.0, 4.0]) * length, np.array([0.0, 1.0, 0.0]) * among])
    unit = np.asarray(normalize(ops.convert_to_tensor(x, dtype="float32")))
    np.testing.assert_allclose(unit, [[0.6, 0, 0.8], [0, 1, 0]], rtol=1e-6)


@pytest.mark.parametrize(
    "number, sound",
    [(3e38, True), (-3e38, True), (np.inf, False), (-np.inf, False), (np.nan, False)],
)
def test_large_numbers_are_sound_and_infinite_ones_are_not(number, sound):
    x = np.full((4, 300), number, "float32")
    x[:2] = 1.0
    found = is_sound(ops.convert_to_tensor([0, 0, 1, 1]), ops.convert_to_tensor(x))
    assert bool(found) == sound
