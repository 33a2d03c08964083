"""The pairs that a strategy keeps, compared with loops; losses use and count only these pairs."""

import keras
import numpy as np
import oracles
import pytest
import tiers
from backend import compiled, eager, value_and_gradient
from batches import batch

from keras_dml import losses, mining
from keras_dml._common.errors import ArgumentError
from keras_dml._pairwise.negatives import distance_weighted
from keras_dml._pairwise.pairs import Candidates, Pairs, normalize

pytestmark = pytest.mark.any_backend

MINED = [name for name, loss in losses.LOSSES.items() if getattr(loss, "takes_memory", False)]


def masks_of_loops(strategy, s, positive, negative):
    """Compute the masks of a strategy, one anchor at a time."""
    left = np.zeros((2, *s.shape), bool)
    for i, row in enumerate(s):
        p, n = list(np.flatnonzero(positive[i])), list(np.flatnonzero(negative[i]))
        if strategy == "hard":
            p, n = sorted(p, key=lambda j: row[j])[:1], sorted(n, key=lambda j: -row[j])[:1]
        elif strategy == "easy":
            p = sorted(p, key=lambda j: -row[j])[:1]
        elif strategy == "semihard":
            nearest_first, n = sorted(n, key=lambda j: -row[j]), []
            for j in p:
                n += ([k for k in nearest_first if row[k] < row[j]] or nearest_first[-1:])[:1]
        elif strategy == "informative":
            p, n = (
                [j for j in p if any(row[j] < row[k] + 0.1 for k in n)],
                [k for k in n if any(row[k] > row[j] - 0.1 for j in p)],
            )
        left[0, i, p], left[1, i, n] = True, True
    return left


@pytest.mark.parametrize("normalize", [True, False], ids=["unit", "raw"])
@pytest.mark.parametrize(
    ("strategies", "names"),
    [
        (mining.Hard(), ["hard"]),
        (mining.SemiHard(), ["semihard"]),
        (mining.EasyPositive(), ["easy"]),
        (mining.MultiSimilarity(0.1), ["informative"]),
        ([mining.EasyPositive(), mining.Hard()], ["easy", "hard"]),
    ],
)
@pytest.mark.parametrize(
    ("sizes", "mode"), [((5, 1, 3, 2), compiled), ((4,), eager), ((1, 1, 1), eager)]
)
def test_masks_match_the_loops(strategies, names, sizes, mode, normalize):
    """Similarities are 1 − D² / 2, also of embeddings that are not normalized."""
    ids, z = batch(seed=3, sizes=sizes)
    loss = losses.ContrastiveLoss(normalize=normalize, mining=strategies, dtype="float64")

    def masks(ids, z):
        pairs = loss.pairs_of(ids, z)
        return pairs.positive, pairs.negative

    found = mode(masks)(*map(keras.ops.convert_to_tensor, (ids, z)))
    f = oracles.unit(z) if normalize else z
    s = 1 - ((f[:, None] - f) ** 2).sum(axis=-1) / 2
    same = ids[:, None] == ids
    expected = same & ~np.eye(len(ids), dtype=bool), ~same
    for name in names:
        expected = masks_of_loops(name, s, *expected)
    np.testing.assert_array_equal(np.stack(list(map(np.asarray, found))), expected)


def test_distance_weighted_keeps_about_as_many_negatives_and_by_their_weights():
    ids, z = np.repeat(np.arange(60), 4), np.random.default_rng(0).normal(size=(240, 8))
    pairs = Pairs.of_batch(ids, normalize(keras.ops.convert_to_tensor(z)))
    kept = [
        np.asarray(pairs.mined((mining.DistanceWeighted(seed),), unit=True).negative)
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(kept[0], kept[1])
    assert (kept[0] != kept[2]).any()
    distances = np.sqrt(np.maximum(2 - 2 * np.asarray(pairs.similarities()), 0))
    weights = np.asarray(distance_weighted(distances, pairs.negative, 8))
    expected = np.minimum(3 * weights, 1)
    assert kept[0].sum() == pytest.approx(expected.sum(), rel=0.15)
    assert not kept[0][weights == 0].any()
    likely = expected > np.median(expected[np.asarray(pairs.negative)])
    assert kept[0][likely].sum() == pytest.approx(expected[likely].sum(), rel=0.15)


# On other backends, test_losses.py compares each loss of batches without positives.
@tiers.parametrize(
    "name", MINED, tiers.few_elsewhere(MINED, lambda name: name in ("contrastive", "fastap"))
)
def test_strategies_that_keep_all_pairs_and_none(name):
    ids, z = batch(seed=1)
    everything, nothing = (
        losses.get(name, mining=strategy, dtype="float64")
        for strategy in (lambda s, positive, negative: (positive, negative),
                         lambda s, positive, negative: (s > 2, s > 2))
    )  # fmt: skip
    value, gradient = value_and_gradient(everything, ids, z)
    expected, by = value_and_gradient(losses.get(name, dtype="float64"), ids, z)
    assert value == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(gradient, by, rtol=1e-9, atol=1e-9)
    value, gradient = value_and_gradient(nothing, ids, z)
    assert value == pytest.approx(0.0, abs=1e-9)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-9)


def test_mining_in_a_memory():
    ids, z = batch(seed=6, sizes=(3, 3, 2))
    rng = np.random.default_rng(1)
    memory = Candidates(
        keras.ops.convert_to_tensor(rng.normal(size=(12, 6)).astype("float32")),
        keras.ops.convert_to_tensor(rng.integers(0, 3, 12)),
        keras.ops.ones(12, dtype="bool"),
        keras.ops.full((len(ids),), -1, dtype="int32"),
    )
    embeddings = keras.ops.convert_to_tensor(z.astype("float32"))
    class_ids = keras.ops.convert_to_tensor(ids)
    loss = losses.ContrastiveLoss(normalize=True, mining=mining.Hard())
    pairs = loss.pairs_of(class_ids, embeddings, memory)
    assert np.asarray(pairs.negative).sum(axis=1).tolist() == [1] * len(ids)
    assert np.asarray(pairs.positive).sum(axis=1).max() == 1
    for seed in (mining.DistanceWeighted(), mining.SemiHard()):
        loss = losses.ContrastiveLoss(normalize=True, mining=seed)
        assert loss.pairs_of(class_ids, embeddings, memory).negative.shape == (8, 12)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("hard", "be a strategy.* but got "),
        (mining.Hard, "be a strategy.* but got "),
        ([mining.Hard(), None], "be a strategy.* but got "),
        (lambda s, positive, negative: positive, "return two masks.*but got "),
        (
            lambda s, positive, negative: (positive[:2], negative),
            r"return two masks.*\(2, 11\) and \(11, 11\)",
        ),
    ],
)
def test_invalid_strategies_are_refused(bad, message):
    with pytest.raises(ArgumentError, match=f"mining must {message}"):
        losses.ContrastiveLoss(mining=bad)(*batch())
