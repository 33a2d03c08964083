"""The same queries, and what each of several runs finds for them."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from experiments.report.neighbors import EmbeddedTable, embedded_table, retrieval_rows
from experiments.report.page import Grid
from experiments.report.retrieval_grid import EACH_ROW, choose_queries
from pipelines import Split

__all__ = ["same_queries"]

_QUERIES = 4


def same_queries(
    runs: Mapping[str, pathlib.Path], data: Split, transform: Callable[..., tf.Tensor]
) -> Grid | None:
    """Some queries of the runs' test images, a row for each run.

    Args:
        runs: name -> the folder of a finished run.
        data: the images of one of them.
        transform: its evaluation transform, for the pictures.

    Returns:
        None where the runs have not the same test images.
    """
    chosen = choose_queries(data.test.labels, _QUERIES)
    rows = []
    for name, folder in runs.items():
        with np.load(folder / "test_embeddings.npz") as saved:
            if not np.array_equal(saved["labels"], data.test.labels):
                return None
            paths = data.test.paths
            if paths is not None and not np.array_equal(saved.get("paths", paths), paths):
                return None
            gallery = saved["gallery_embeddings"] if data.gallery else None
            test = EmbeddedTable(data.test, saved["embeddings"])
        found = retrieval_rows(test, transform, chosen, embedded_table(data.gallery, gallery))
        rows.append([row._replace(note=name) for row in found])
    # Query by query, the runs below each other.
    together = [row for query in zip(*rows) for row in query]
    return Grid("The same queries by each run", together, EACH_ROW)
