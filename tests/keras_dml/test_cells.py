"""Counts and sums by cell, the quick way and Keras', against NumPy's."""

import numpy as np
import pytest
from backend import compiled
from keras import ops

from keras_dml import cells as cells_module
from keras_dml.cells import are_quick, counts_in_cells, sums_in_cells
from keras_dml.losses import FastAPLoss, fastap

pytestmark = pytest.mark.any_backend

RNG = np.random.default_rng(0)
WAYS = [True, False] if are_quick() else [False]


@pytest.fixture(params=WAYS, ids=["quick" if way else "segments" for way in WAYS])
def way(request, monkeypatch):
    for module in (cells_module, fastap):
        monkeypatch.setattr(module, "are_quick", lambda: request.param)


def expected(weights, cells, size):
    rows = [
        np.bincount(row, weight, size)
        for row, weight in zip(np.atleast_2d(cells), np.atleast_2d(weights), strict=True)
    ]
    return np.reshape(rows, (*cells.shape[:-1], size))


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
@pytest.mark.parametrize("shape", [(1000,), (7, 300)])
def test_counts_and_sums_are_those_of_bincount(way, shape, scale):
    cells = RNG.integers(0, 12, shape).astype("int32")
    values = (scale * RNG.normal(size=shape)).astype("float32")
    given = ops.convert_to_tensor(cells)
    found = compiled(lambda cells: counts_in_cells(cells, 12))(given)
    np.testing.assert_array_equal(ops.convert_to_numpy(found), expected(np.ones(shape), cells, 12))
    sums = compiled(lambda values, cells: sums_in_cells(values, cells, 12))
    np.testing.assert_allclose(
        ops.convert_to_numpy(sums(ops.convert_to_tensor(values), given)),
        expected(values.astype("float64"), cells, 12),
        rtol=1e-5,
        atol=1e-5 * scale,
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_is_in_the_sums(way, value):
    sums = sums_in_cells(
        ops.convert_to_tensor(np.array([1, value, 2], "float32")),
        ops.convert_to_tensor(np.array([0, 1, 1], "int32")),
        2,
    )
    assert not np.isfinite(ops.convert_to_numpy(sums)[1])


def test_nothing_and_zeros(way):
    for number in (0, 4):
        values, cells = np.zeros(number, "float32"), np.zeros(number, "int32")
        sums = sums_in_cells(ops.convert_to_tensor(values), ops.convert_to_tensor(cells), 3)
        np.testing.assert_array_equal(ops.convert_to_numpy(sums), np.zeros(3))


def test_a_graph_gives_nan_for_nan(way):
    labels = np.repeat(np.arange(4), 3)
    embeddings = RNG.normal(size=(12, 4)).astype("float32")
    embeddings[5] = np.nan
    loss = compiled(lambda z: FastAPLoss()(ops.convert_to_tensor(labels), z))
    assert np.isnan(float(loss(ops.convert_to_tensor(embeddings))))
