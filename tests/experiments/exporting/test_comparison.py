"""Comparison of an export with the Keras model, on known numbers."""

import numpy as np
import pytest

from experiments.exporting.exported_run import compare, milliseconds


def test_numbers_of_a_comparison():
    of_keras = np.array([[3, 4], [3, 4.1], [-5, 0], [-5, 0.1]], np.float32)
    of_export = of_keras.copy()
    of_export[0] = [-5, 0.5]
    labels = np.array([0, 0, 1, 1])
    found = compare({"test": of_export}, {"test": of_keras}, {"test": labels}, [1, 3], 7, 2.5)
    assert found.difference == 8 and (found.bytes, found.milliseconds) == (7, 2.5)
    assert found.length == pytest.approx(np.linalg.norm(of_keras, axis=1).mean())
    assert found.similarity == pytest.approx((-15 + 2) / (5 * np.hypot(5, 0.5)))
    assert found.keras_recalls == {1: 1.0, 3: 1.0}
    assert found.recalls[1] < 1 and found.recalls[3] == 1


def test_a_gallery_is_searched():
    queries = np.eye(2, dtype=np.float32)
    labels = np.array([0, 1])
    both = {"test": queries, "gallery": queries[::-1].copy()}
    same = {"test": queries, "gallery": queries}
    found = compare(both, same, {"test": labels, "gallery": labels}, [1], 0, 0.0)
    assert (found.recalls[1], found.keras_recalls[1]) == (0.0, 1.0)


def test_time():
    calls = []
    assert 0 <= milliseconds(lambda image: calls.append(image.shape), np.zeros((1, 2, 2, 3))) < 1000
    assert set(calls) == {(1, 2, 2, 3)}
