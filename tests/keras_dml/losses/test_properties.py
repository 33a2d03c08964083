"""Properties of single losses, in addition to the tests that all losses share."""

import keras
import numpy as np
import oracles
import pytest
from backend import compiled, value_and_gradient
from batches import batch, softmax

from keras_dml import losses
from keras_dml.losses import InstanceCrossEntropyLoss

pytestmark = pytest.mark.any_backend


def test_class_ids_without_logits():
    loss = losses.CrossEntropyLoss(reduction=None)
    ids, logits = np.array([0, 4, 1]), np.zeros((3, 4))
    with pytest.raises(ValueError, match="y_true must be class ids from 0 to 3.*4 in row 1"):
        loss(ids, logits)
    with pytest.raises(ValueError, match="at least 2 classes"):
        loss(np.array([0, 0]), np.ones((2, 1)))
    if keras.backend.backend() != "torch":  # PyTorch has no graphs
        np.testing.assert_array_equal(
            np.isnan(np.asarray(compiled(loss)(ids, logits))), [False, True, False]
        )


@pytest.mark.parametrize(
    ("arguments", "ids", "cost"),
    [
        ({"margin": 1.5}, [0, 1], 1.5**2),
        ({"positive_margin": -0.5, "power": 1}, [4, 4], 0.5),
        ({"positive_margin": -0.5, "power": 2}, [4, 4], 0.5**2),
    ],
)
def test_a_coincident_pair_costs_the_whole_margin_without_a_gradient(arguments, ids, cost):
    loss, same = losses.ContrastiveLoss(**arguments), np.full((2, 7), 123.4)
    value, gradient = value_and_gradient(loss, np.array(ids), same, "float32")
    assert value == pytest.approx(cost)
    assert (gradient == 0.0).all()


def test_a_zero_row_has_no_gradient_through_the_normalization():
    ids, z = batch()
    z[2] = 0.0
    for loss in (losses.MultiSimilarityLoss(), losses.ContrastiveLoss(normalize=True)):
        _, gradient = value_and_gradient(loss, ids, z, "float32")
        assert (gradient[2] == 0.0).all()


def test_a_positive_at_the_distance_of_a_negative_is_not_semihard():
    # From the anchor at 0: a positive and a negative at 1, a negative at 3. Only 3 is farther.
    z = np.array([[0.0], [1.0], [-1.0], [3.0]])
    loss = losses.TripletLoss(
        2.5, triplets="semihard", normalize=False, reduction=None, dtype="float64"
    )
    each = np.asarray(loss(np.array([0, 0, 1, 2]), z))
    assert each[0] == pytest.approx((1.0 - 3.0 + 2.5) * 4 / 2)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("triplet", {}),
        ("triplet", {"triplets": "semihard"}),
        pytest.param("triplet", {"triplets": "hard"}, marks=pytest.mark.slow),
        pytest.param("quadruplet", {}, marks=pytest.mark.slow),
    ],
)
def test_float32_is_exact_with_hundreds_of_images(name, arguments):
    loss, precise = losses.get(name, **arguments), losses.get(name, **arguments, dtype="float64")
    rng = np.random.default_rng(0)
    z = rng.normal(size=(300, 64)) + 1.5
    for classes in (75, 2):
        ids = np.arange(300) % classes
        value, gradient = value_and_gradient(loss, ids, z.astype("float32"), "float32")
        exact, exact_gradient = value_and_gradient(precise, ids, z)
        assert value == pytest.approx(exact, rel=2e-5)
        # Rounding may swap negatives at almost the same distance in a few rows, not in the whole.
        error = np.linalg.norm(gradient - exact_gradient) / np.linalg.norm(exact_gradient)
        assert error < 0.03


@pytest.mark.parametrize("factor", [1e4, 1e10])
@pytest.mark.parametrize("name", ["triplet", "quadruplet"])
def test_a_far_row_does_not_round_the_other_rows(name, factor):
    """The sum of all hinges is never below 0, and far distances do not absorb near ones."""
    ids, z = batch(seed=4, sizes=(4, 4, 4), dimensions=4)
    z[0] *= factor
    z = z.astype("float32")
    each = keras.ops.convert_to_numpy(losses.get(name, normalize=False, reduction=None)(ids, z))
    exact = sum(getattr(oracles, name)(ids, z.astype("float64"), normalize=False))
    assert (each >= 0).all()
    # Differences of the far row's distances are below the resolution of float32.
    np.testing.assert_allclose(each[1:], exact[1:], rtol=1e-5)


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


@pytest.mark.parametrize("anchor_gradient", [False, True])
@pytest.mark.parametrize(("scale", "pair_reduction"), [(1.0, "mean"), (64.0, "sum")])
def test_the_reweighted_gradient_matches_the_loops(anchor_gradient, scale, pair_reduction):
    ids, z = batch(seed=7)
    loss = InstanceCrossEntropyLoss(
        scale, anchor_gradient=anchor_gradient, pair_reduction=pair_reduction, dtype="float64"
    )
    _, gradient = value_and_gradient(loss, ids, z)
    expected = oracles.reweighted_gradient(ids, z, scale, anchor_gradient)
    np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-14)


def test_very_easy_positives_still_weigh_one_half():
    """1 − p underflows in float32 for every positive; its logarithm does not."""
    ids = np.array([0, 0, 0, 1, 1])
    z = np.array([[1, 0.01, 0], [1, -0.02, 0], [1, 0, 0.03], [-1, 0, 0.1], [-1, 0.1, 0]])
    loss = InstanceCrossEntropyLoss(100.0)
    value, gradient = value_and_gradient(loss, ids, z, "float32")
    assert value == pytest.approx(0.0, abs=1e-30)
    _, exact = value_and_gradient(InstanceCrossEntropyLoss(100.0, dtype="float64"), ids, z)
    assert np.abs(gradient[:3]).max() > 1e-3
    np.testing.assert_allclose(gradient, exact, atol=1e-4)


@pytest.mark.parametrize("ids", [[0, 0, 0, 0], [0, 1, 2, 3]], ids=["no negatives", "no positives"])
@pytest.mark.parametrize("anchor_gradient", [False, True])
def test_an_image_without_terms_has_no_gradient(ids, anchor_gradient):
    _, z = batch()
    loss = InstanceCrossEntropyLoss(anchor_gradient=anchor_gradient)
    value, gradient = value_and_gradient(loss, np.array(ids), z[:4], "float32")
    assert value == 0.0
    assert (gradient == 0.0).all()


def test_sample_weights_weigh_the_gradient_of_their_anchors():
    ids, z = batch(seed=9)
    loss = InstanceCrossEntropyLoss(16.0, dtype="float64")
    total = np.zeros_like(z)
    for a in range(len(ids)):
        _, gradient = value_and_gradient(loss, ids, z, sample_weight=np.eye(len(ids))[a])
        total += gradient
    _, whole = value_and_gradient(loss, ids, z)
    np.testing.assert_allclose(total, whole, atol=1e-12)


def test_small_losses_are_exact():
    """Logits of some hundreds, whose difference would lose a loss of 1e-6."""
    ids = np.array([0, 0, 1, 1])
    z = np.array([[1.0, 0.0], [1.0, 0.1], [0.78, 0.6], [0.75, 0.65]])
    value = float(InstanceCrossEntropyLoss()(ids, z))
    expected = oracles.mean_loss(oracles.instance_cross_entropy, ids, z)
    assert 0 < value < 1e-3
    assert value == pytest.approx(expected, rel=1e-3)
