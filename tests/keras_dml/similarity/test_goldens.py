"""Results of `keras_dml.similarity` equal those of TensorFlow Similarity 0.17.1."""

import json

import keras
import numpy as np
import pytest
from backend import value_and_gradient
from peers import tensorflow_similarity_goldens as cases

import keras_dml.similarity as ours

GOLDENS = json.loads(cases.FILE.read_text("utf-8"))

pytestmark = pytest.mark.any_backend


@pytest.mark.parametrize("batch", cases.BATCHES)
@pytest.mark.parametrize("name", cases.LOSSES)
def test_losses_and_gradients(name, batch):
    kind, arguments = cases.LOSSES[name]
    labels, embeddings = cases.BATCHES[batch]
    loss = getattr(ours.losses, kind)(**arguments)
    value, gradient = value_and_gradient(loss, labels, embeddings, "float32")
    expected, slope = GOLDENS[f"{name}, {batch}"]
    assert float(value) == pytest.approx(expected, abs=1e-5)
    # Equal distances have no derivative; the versions share it differently among ties.
    if batch == "B":
        np.testing.assert_allclose(gradient, slope, atol=2e-5)


@pytest.mark.parametrize("warmup", [0, 1])
def test_memory(warmup):
    loss = ours.losses.XBM(ours.losses.MultiSimilarityLoss(), 8, warmup)
    labels, z = cases.BATCHES["A"]
    found = [float(loss(labels, rows)) for rows in (z, z[::-1].copy(), z)]
    assert found == pytest.approx(GOLDENS[f"memory, warmup {warmup}"], abs=1e-5)


def near(expected):
    """Return a golden result whose floats equal other floats up to rounding."""
    return keras.tree.map_structure(
        lambda one: pytest.approx(one, abs=1e-5) if isinstance(one, float) else one, expected
    )


def test_index_calibration_metrics_and_layers():
    found = json.loads(json.dumps(cases.plain(cases.results(ours, keras))))
    assert set(found) <= set(GOLDENS) and len(found) > 50
    for name, value in found.items():
        expected = dict(GOLDENS[name]) if name.startswith("calibrate") else GOLDENS[name]
        if name.startswith("calibrate"):
            # The original rounds the threshold and not the distance, so the query at the threshold
            # can miss.
            matches, expected_matches = value.pop("match"), expected.pop("match")
            assert matches.keys() == expected_matches.keys()
            if name in ("calibrate, f1", "calibrate, vote"):
                assert matches["optimal"] == expected_matches["optimal"]
        if name == "calibrate, vote":  # with 3 neighbors, some distances are equal up to rounding
            value.pop("thresholds")
            expected.pop("thresholds")
        assert value == near(expected), name
