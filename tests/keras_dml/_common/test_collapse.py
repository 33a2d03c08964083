"""Nearly equal embeddings."""

import numpy as np
import pytest

from keras_dml._common.collapse import mean_unit_distance, nearly_equal


def test_the_mean_distance_of_unit_vectors():
    z = np.array([[3, 0], [0, 4], [-0.1, 0]], np.float32)
    assert mean_unit_distance(z) == pytest.approx((2 + 2 * 2**0.5) / 3)
    random = np.random.default_rng(0).normal(size=(3000, 128))
    assert mean_unit_distance(random) == pytest.approx(2**0.5, abs=0.01)
    # A small difference of long embeddings keeps its digits.
    near = 1e4 + np.random.default_rng(0).normal(size=(50, 16))
    assert mean_unit_distance(near) == pytest.approx(2**0.5 * 1e-4, rel=0.1)
    assert mean_unit_distance(np.zeros((5, 3))) == 0
    assert mean_unit_distance(np.ones((1, 3))) == np.inf


@pytest.mark.parametrize(
    ("distances", "expected"),
    [([], False), ([0.01, 0.02], False), ([0.01, 0.02, 0.6], False), ([0.6, 0.01, 0.02], False),
     ([0.6, 0.01, 0.02, 0.01], True)],
)  # fmt: skip
def test_three_evaluations_decide(distances, expected):
    assert nearly_equal(distances) is expected
