"""Insertion positions in sorted vectors of any distribution, compared with NumPy."""

import numpy as np
import pytest
import tiers
from backend import compiled
from keras import ops

from keras_dml._pairwise.arithmetic import places_in

pytestmark = pytest.mark.any_backend

RNG = np.random.default_rng(0)
LYING = {
    "spread": RNG.normal(size=300),
    "one": np.array([0.7]),
    "equal": np.full(50, 1.5),
    "ties": RNG.integers(0, 9, 200).astype(float),
    "crowded, and one far away": np.append(1 + 1e-5 * RNG.normal(size=200), 1e6),
    "huge": 3e38 * RNG.uniform(-1, 1, 90),
    "tiny": 1e-30 * RNG.uniform(-1, 1, 90),
    "next to each other": np.nextafter(np.float32(1), np.float32(2)) ** np.arange(40),
    "with infinite ones behind": np.append(RNG.uniform(size=99), [np.inf] * 7),
    "infinite": np.full(5, np.inf),
}


@tiers.parametrize("dtype", ["float32", "float64"], ["float32"])
@pytest.mark.parametrize("lying", LYING)
def test_positions_match_searchsorted(lying, dtype):
    in_order = np.sort(LYING[lying].astype(dtype))
    finite = in_order[np.isfinite(in_order)]
    low, high = (finite.min(), finite.max()) if len(finite) else (0, 1)
    between = low * 0.5 + (high * 0.5 - low * 0.5) * RNG.uniform(0, 2, 500) + low * 0.5
    values = np.concatenate([finite, between, np.nextafter(finite, 0), [-3e38, -1, 0, 3e38]])
    values = values.astype(dtype)
    expected = np.searchsorted(in_order, values, side="right")
    given = ops.convert_to_tensor(in_order), ops.convert_to_tensor(values)
    np.testing.assert_array_equal(ops.convert_to_numpy(compiled(places_in)(*given)), expected)
