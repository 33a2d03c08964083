"""SupCon, NT-Xent, circle, margin, Smooth-AP, and recall@k: checks beyond the shared tests."""

import numpy as np
import oracles
import pytest
from backend import value_and_gradient
from batches import batch, softmax

from keras_dml import losses

pytestmark = pytest.mark.any_backend


def projected(gradient, z):
    """Return the gradient at the embeddings, from a gradient at the l2-normalized embeddings."""
    f = oracles.unit(z)
    along = (gradient * f).sum(axis=1, keepdims=True)
    return (gradient - along * f) / np.linalg.norm(z, axis=1, keepdims=True)


def test_coincident_points():
    same, ids = np.tile([[1.0, 2.0]], (6, 1)), np.repeat([0, 1], 3)
    for loss, expected in (
        (losses.NTXentLoss(dtype="float64"), np.log(1 + 3)),
        # Positive hinges are 0, negative ones m + β, independent of the negatives' weights.
        (losses.MarginLoss(dtype="float64"), 1.4),
        (losses.MarginLoss(sampling="all", dtype="float64"), 1.4),
        # Smooth ranks count ties as halves: 1 + 1/2 among positives, 1 + 4/2 among all.
        (losses.SmoothAPLoss(dtype="float64"), 1 - 1.5 / 3),
    ):
        value, gradient = value_and_gradient(loss, ids, same)
        assert value == pytest.approx(expected)
        assert np.isfinite(gradient).all()


def test_the_gradient_of_the_circle_loss_matches_the_paper():
    ids, z = batch(seed=7)
    margin, scale = 0.3, 15.0
    f = oracles.unit(z)
    s, same = f @ f.T, ids[:, None] == ids
    positive, negative = same & ~np.eye(len(ids), dtype=bool), ~same
    kept = positive.any(axis=1) & negative.any(axis=1)
    attracting, repelling = np.maximum(0, 1 + margin - s), np.maximum(0, s + margin)
    a, b = -scale * attracting * (s - 1 + margin), scale * repelling * (s - margin)
    together = softmax(np.where(positive, a, -1e9))
    apart = softmax(np.where(negative, b, -1e9))
    odds = (np.exp(a) * positive).sum(axis=1) * (np.exp(b) * negative).sum(axis=1)
    weights = (-attracting * together * positive + repelling * apart) * scale
    weights *= (kept * odds / (1 + odds) / kept.sum())[:, None]
    expected = projected((weights + weights.T) @ f, z)
    loss = losses.CircleLoss(margin, scale=scale, dtype="float64")
    np.testing.assert_allclose(value_and_gradient(loss, ids, z)[1], expected, atol=1e-10)


@pytest.mark.parametrize("temperature", [2.0, 10.0])
def test_the_gradient_of_the_ranked_list_loss_treats_its_weights_as_constants(temperature):
    ids, z = batch(seed=9)
    f = oracles.unit(z)
    distance = np.sqrt(((f[:, None] - f) ** 2).sum(axis=2))
    same = ids[:, None] == ids
    far, near = same & (distance > 0.8), ~same & (distance < 1.2)
    slopes = 0.5 * far / np.maximum(far.sum(axis=1, keepdims=True), 1)
    weights = near * np.exp(temperature * (1.2 - distance))
    slopes -= 0.5 * weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
    slopes = (slopes + slopes.T) / len(ids) / np.where(distance > 0, distance, 1)
    expected = projected(slopes.sum(axis=1, keepdims=True) * f - slopes @ f, z)
    loss = losses.RankedListLoss(temperature=temperature, dtype="float64")
    np.testing.assert_allclose(value_and_gradient(loss, ids, z)[1], expected, atol=1e-10)


@pytest.mark.parametrize("far_class", [False, True])
@pytest.mark.parametrize(("margin", "beta"), [(0.2, 1.1), (0.2, 1.2), (0.4, 1.5)])
def test_the_gradient_of_the_margin_loss_treats_its_weights_as_constants(margin, beta, far_class):
    ids, z = batch(seed=8, dimensions=4)
    if far_class:  # The far class has no near negatives: all weigh the same.
        z = 0.3 * z + np.where(ids == ids[0], 1, -1)[:, None] * np.array([1.0, 0, 0, 0])
    f = oracles.unit(z)
    distance = np.sqrt(((f[:, None] - f) ** 2).sum(axis=2))
    same = ids[:, None] == ids
    weights, opened = np.zeros_like(distance), 0.0
    for i in range(len(ids)):
        together = [j for j in range(len(ids)) if j != i and same[i, j]]
        apart = [j for j in range(len(ids)) if not same[i, j]]
        if not together:
            continue
        shares = oracles.distance_weighted(distance[i, apart], 4)
        for j in together:
            weights[i, j] = margin + distance[i, j] > beta
        for j, share in zip(apart, shares):
            weights[i, j] = -len(together) * share * (margin + beta > distance[i, j])
        opened += abs(weights[i]).sum()
    slopes = (weights + weights.T) / opened / np.where(distance > 0, distance, 1)
    gradient = slopes.sum(axis=1, keepdims=True) * f - slopes @ f
    loss = losses.MarginLoss(margin, beta=beta, dtype="float64")
    value, computed = value_and_gradient(loss, ids, z)
    np.testing.assert_allclose(computed, projected(gradient, z), atol=1e-10)
    expected = oracles.mean_loss(oracles.margin, ids, z, margin=margin, beta=beta)
    assert value == pytest.approx(expected, rel=1e-9)


def test_a_class_without_a_boundary_is_nan():
    ids, z = batch(seed=9)
    each = losses.MarginLoss(boundaries=2, reduction=None)(ids, np.float32(z))
    assert np.isnan(np.asarray(each)).tolist() == (ids > 1).tolist()


def test_boundaries_need_columns_of_the_embeddings():
    with pytest.raises(ValueError, match=r"followed by 3 boundaries.*\(4, 3\)"):
        losses.MarginLoss(boundaries=3)(np.arange(4), np.ones((4, 3)))
