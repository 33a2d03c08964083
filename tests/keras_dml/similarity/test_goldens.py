"""Results of `keras_dml.similarity` equal those of TensorFlow Similarity 0.17.1."""

import importlib.util
import json
import pathlib

import keras
import numpy as np
import pytest
from backend import value_and_gradient

import keras_dml.similarity as ours

PEERS = pathlib.Path(__file__).parents[2] / "support" / "peers"
spec = importlib.util.spec_from_file_location(
    "tensorflow_similarity_goldens", PEERS / "tensorflow_similarity_goldens.py"
)
cases = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cases)
GOLDENS = json.loads((PEERS / "tensorflow_similarity.json").read_text("utf-8"))

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


def test_index_calibration_metrics_and_layers():
    found = json.loads(json.dumps(cases.plain(cases.results(ours, keras))))
    assert set(found) <= set(GOLDENS) and len(found) > 50

    def compare(value, expected, where):
        if isinstance(expected, dict):
            assert value.keys() == expected.keys(), where
            for key in expected:
                compare(value[key], expected[key], f"{where}: {key}")
        elif isinstance(expected, list):
            assert len(value) == len(expected), where
            for number, pair in enumerate(zip(value, expected)):
                compare(*pair, f"{where}: {number}")
        elif isinstance(expected, float):
            assert value == pytest.approx(expected, abs=1e-5), where
        else:
            assert value == expected, where

    # The original rounds the threshold but not the distance, so the query at the threshold misses.
    for results in (found, GOLDENS):
        results["calibrate, f1"]["match"].pop("half")
    for name, value in found.items():
        compare(value, GOLDENS[name], name)
