"""Properties of the triplet and quadruplet losses: mining, ties, and unknown batch size."""

import keras
import numpy as np
import oracles
import pytest
from backend import value_and_gradient
from batches import batch

from keras_dml import losses

pytestmark = pytest.mark.any_backend


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
