"""Repeated embeddings of a table."""

import keras
import numpy as np
import pytest

from experiments.evaluation.table_embedder import TableEmbedder
from pipelines import EvaluationTransform, ImageTable


@pytest.mark.slow
def test_tables_are_embedded_repeatedly_from_any_row():
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    first, second = (ImageTable.from_arrays(part, [0] * len(part)) for part in (images, images[1:]))
    model = keras.Sequential([keras.Input([8, 8, 3]), keras.layers.Flatten()])
    embedder = TableEmbedder(model, EvaluationTransform(8), 2, again=True)
    expected = images.reshape(5, -1).astype("float32")
    for _ in range(3):
        np.testing.assert_array_equal(embedder(first), expected)
        np.testing.assert_array_equal(embedder(second), expected[1:])
        rest = list(embedder.batches(first, first_row=3))
        np.testing.assert_array_equal(np.concatenate(rest), expected[3:])
    next(embedder.batches(first))  # stopped before the end of the table
    np.testing.assert_array_equal(embedder(first), expected)
