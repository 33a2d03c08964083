"""Distance-weighted negatives: their probabilities and the draws."""

import keras
import numpy as np
import pytest

from keras_dml._pairwise.negatives import distance_weighted, draw_negatives

pytestmark = pytest.mark.any_backend


def probabilities_of(ids, distances, dimensions, dtype="float64"):
    negative = keras.ops.convert_to_tensor(ids[:, None] != ids[None, :])
    distances = keras.ops.convert_to_tensor(distances, dtype=dtype)
    return np.asarray(distance_weighted(distances, negative, dimensions))


def test_limits():
    ids = np.array([0, 1, 1, 1, 1])
    distances = np.full((5, 5), 1.0)
    distances[0] = [0.0, 0.2, 0.5, 1.0, 1.4]
    row = probabilities_of(ids, distances, 8)[0]
    assert row[1] == row[2] > row[3] > 0 == row[4]
    # No negative is within the limits: all have the same probability.
    far = probabilities_of(ids, distances + 1.5, 8)[0]
    np.testing.assert_allclose(far, [0, 0.25, 0.25, 0.25, 0.25])


def test_many_dimensions_do_not_overflow():
    """Weights range over 300 powers of ten, beyond float32."""
    ids = np.array([0, 1, 1, 1])
    distances = np.array([[0.0, 0.5, 1.2, 1.39]] * 4)
    row = probabilities_of(ids, distances, 2048, dtype="float32")[0]
    np.testing.assert_allclose(row, [0, 1, 0, 0], atol=1e-6)


def draw(probabilities, seed=0, step=0, **more):
    drawn = draw_negatives(keras.ops.convert_to_tensor(probabilities), seed, step, **more)
    return np.asarray(drawn)


@pytest.mark.slow
def test_draws_follow_the_probabilities_and_are_independent():
    probabilities = np.array([[0.0, 0.5, 0.0, 0.125, 0.375, 0.0]] * 6, "float32")
    draws = np.stack([draw(probabilities, seed=5, step=step) for step in range(600)])
    assert draws.dtype == np.int32
    shares = np.bincount(draws.ravel(), minlength=6) / draws.size
    # 21,600 draws: four standard deviations are at most 0.0136.
    np.testing.assert_allclose(shares, probabilities[0], atol=0.014)
    assert (shares[[0, 2, 5]] == 0).all()
    both = np.mean((draws[:, 0, 0] == 1) & (draws[:, 0, 1] == 1))
    assert both == pytest.approx(0.25, abs=0.07)
    across = np.mean((draws[:, 0, 0] == 1) & (draws[:, 1, 0] == 1))
    assert across == pytest.approx(0.25, abs=0.07)
    in_time = np.mean((draws[:-1, 0, 0] == 1) & (draws[1:, 0, 0] == 1))
    assert in_time == pytest.approx(0.25, abs=0.07)


def test_draws_are_a_pure_function_of_seed_step_and_anchor():
    probabilities = np.full((30, 30), 1 / 30, "float32")
    first = draw(probabilities, seed=1, step=7)
    np.testing.assert_array_equal(first, draw(probabilities, seed=1, step=7))
    assert (first != draw(probabilities, seed=1, step=8)).mean() > 0.8
    assert (first != draw(probabilities, seed=2, step=7)).mean() > 0.8
    assert (first != draw(probabilities, seed=7, step=1)).mean() > 0.8
    # An anchor's draws do not depend on the other anchors.
    changed = probabilities.copy()
    changed[3:] = np.eye(30, dtype="float32")[3:]
    np.testing.assert_array_equal(first[:3], draw(changed, seed=1, step=7)[:3])
    # Nor do they depend on the replica.
    np.testing.assert_array_equal(first[10:20], draw(probabilities[10:20], 1, 7, first_row=10))


def test_rows_without_negatives_draw_valid_indices():
    drawn = draw(np.zeros((5, 5), "float32"))
    assert ((drawn >= 0) & (drawn < 5)).all()
    assert draw(np.zeros((1, 1), "float32")).tolist() == [[0]]
