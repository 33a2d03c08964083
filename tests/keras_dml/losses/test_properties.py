"""Properties of single losses, in addition to the tests that all losses share."""

import keras
import numpy as np
import oracles
import pytest
from backend import value_and_gradient
from batches import batch

from keras_dml import losses
from keras_dml.losses import InstanceCrossEntropyLoss

pytestmark = pytest.mark.any_backend


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


def test_a_class_without_a_boundary_is_nan():
    ids, z = batch(seed=9)
    each = losses.MarginLoss(boundaries=2, reduction=None)(ids, np.float32(z))
    assert np.isnan(np.asarray(each)).tolist() == (ids > 1).tolist()


def test_boundaries_need_columns_of_the_embeddings():
    with pytest.raises(ValueError, match=r"followed by 3 boundaries.*\(4, 3\)"):
        losses.MarginLoss(boundaries=3)(np.arange(4), np.ones((4, 3)))


@pytest.mark.parametrize("anchor_gradient", [False, True])
@pytest.mark.parametrize(("scale", "pair_reduction"), [(1.0, "mean"), (64.0, "sum")])
@pytest.mark.parametrize(
    "classes", [None, [0, 0, 0, 0], [0, 1, 2, 3]], ids=["mixed", "no negatives", "no positives"]
)
def test_the_reweighted_gradient_matches_the_loops(classes, anchor_gradient, scale, pair_reduction):
    ids, z = batch(seed=7)
    if classes:
        ids, z = np.array(classes), z[:4]
    loss = InstanceCrossEntropyLoss(
        scale, anchor_gradient=anchor_gradient, pair_reduction=pair_reduction, dtype="float64"
    )
    weights = np.linspace(0, 2, len(ids))
    _, gradient = value_and_gradient(loss, ids, z, sample_weight=weights)
    expected = oracles.reweighted_gradient(ids, z, weights, scale, anchor_gradient)
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


def test_small_losses_are_exact():
    """Logits of some hundreds, whose difference would lose a loss of 1e-6."""
    ids = np.array([0, 0, 1, 1])
    z = np.array([[1.0, 0.0], [1.0, 0.1], [0.78, 0.6], [0.75, 0.65]])
    value = float(InstanceCrossEntropyLoss()(ids, z))
    expected = oracles.mean_loss(oracles.instance_cross_entropy, ids, z)
    assert 0 < value < 1e-3
    assert value == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("name", ["contrastive", "spce"])
def test_matryoshka_is_the_weighted_sum_over_prefixes(name):
    inner, (ids, z) = losses.get(name, dtype="float64"), batch(seed=1)
    if name == "spce":  # with groups in place of class ids
        ids = np.array([[1, 0], [1, 1], [0, 1]])[ids % 3]
    dims, weights = (2, 4, 6), (0.5, 2.0, 1.0)
    value, gradient = value_and_gradient(
        losses.MatryoshkaLoss(inner, dims, weights=weights), ids, z
    )
    expected, slopes = 0.0, np.zeros_like(z)
    for length, weight in zip(dims, weights):
        of_prefix, slope = value_and_gradient(inner, ids, z[:, :length])
        expected += weight * of_prefix
        slopes[:, :length] += weight * slope
    assert value == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(gradient, slopes, atol=1e-12)


@pytest.mark.parametrize(
    ("dims", "weights", "message"),
    [
        ((), None, "dims must be one or more whole numbers"),
        ((3, 3, 6), None, r"dims must be increasing.* but got \(3, 3, 6\)"),
        ((3, 6), (1.0,), r"weights must be one number for each of dims=\(3, 6\), but got \(1.0,\)"),
        ((3, 6), (1.0, -1.0), r"weights\[1\] must be a number of at least 0"),
        ((3, 7), None, r"dims must be .* end with d = 6.* but got \(3, 7\)"),
    ],
)
def test_bad_arguments_of_matryoshka(dims, weights, message):
    ids, z = batch()
    with pytest.raises(ValueError, match=message):
        losses.MatryoshkaLoss(losses.SNCALoss(), dims, weights=weights)(ids, z)


@pytest.mark.parametrize(
    "loss",
    [losses.ArcFaceLoss(), losses.MarginLoss(boundaries=1), "snca"],
    ids=["cosines", "boundaries", "a name"],
)
def test_losses_without_prefixes(loss):
    with pytest.raises(TypeError, match="loss must be a .*EmbeddingLoss over only embeddings"):
        losses.MatryoshkaLoss(loss, (2, 4))
