"""Exact nearest neighbors of every row."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from keras_dml._common.blocks import slices
from keras_dml._common.checks import items_of
from keras_dml._common.errors import argument_error
from keras_dml._common.rows import rows_of_sets
from keras_dml._common.types import Float32Array, Int64Array, Metric
from keras_dml.metrics.bar import long_work_bar

if TYPE_CHECKING:
    from keras_dml.retrieval import Index


# Queries per block, and neighbors of a block: about 65 bytes each.
_BLOCK, _PAIRS = 4096, 2**22


def make_index(embeddings: npt.ArrayLike, metric: Metric) -> Index:
    """Build the exact index of `retrieval.build_index`."""
    # Imported here, because `import keras_dml` does not import indexes.
    from keras_dml.retrieval import build_index

    return build_index(embeddings, metric)


def check_ks(name: str, ks: Iterable[int], items: Float32Array, own_rows: bool) -> list[int]:
    """Return whole numbers from 1 to the number of items as a list, or raise `ValueError`."""
    values = items_of(ks)
    if not values:
        raise argument_error(name, "a list of at least one K", ks)
    most = len(items) - own_rows
    for k in values:
        if isinstance(k, bool) or not isinstance(k, numbers.Integral) or not 1 <= int(k) <= most:
            what = "other items" if own_rows else "items in gallery"
            wanted = f"whole numbers from 1 to {most}, the number of {what}"
            raise argument_error(name, wanted, k)
    return [int(k) for k in values]  # a NumPy scalar of 8 bits would overflow


def neighbor_blocks(
    index: Index, queries: np.ndarray, k: int, own_rows: np.ndarray | None = None
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Yield the k nearest items of each query, one block of queries at a time.

    Args:
        index: Index of all items.
        queries: Finite rows `[n, d]`.
        k: Number of neighbors.
        own_rows: Item that each query is, `[n]`, to exclude it. None excludes nothing.

    Yields:
        (slice of the queries, rows int64 `[b, k]`, scores float32 `[b, k]`).
    """
    with long_work_bar(f"nearest {k} ({index.metric})", len(queries)) as advance:
        for block in slices(len(queries), min(_BLOCK, _PAIRS // (k + 1))):
            rows, scores = index.search(queries[block], k + (own_rows is not None))
            if own_rows is not None:
                left_out = rows == own_rows[block, None]
                # If more than k duplicates have lower row numbers, the query's row is not among the
                # results.
                left_out[~left_out.any(axis=1), -1] = True
                rows, scores = (found[~left_out].reshape(-1, k) for found in (rows, scores))
            yield block, rows, scores
            advance(len(rows))


def nearest_neighbors(
    embeddings: npt.ArrayLike,
    k: int,
    metric: Metric = "cosine",
    gallery: npt.ArrayLike | None = None,
) -> tuple[Int64Array, Float32Array]:
    """Find the k nearest other rows of every row, nearest first, and ties in row order.

    Examples:
        >>> z = np.array([[1, 0], [0.8, 0.6], [0, 1]], "float32")
        >>> rows, similarities = nearest_neighbors(z, k=1)
        >>> rows, np.round(similarities, 3)
        (array([[1],
               [0],
               [1]]), array([[0.8],
               [0.8],
               [0.6]], dtype=float32))

    Args:
        embeddings: Numbers `[n, d]`, n at least 2 (1 with a gallery).
        k: From 1 to n - 1, or to m.
        metric: "cosine" or "l2".
        gallery: Numbers `[m, d]` to search instead. No row is excluded then.

    Returns:
        `(rows, scores)`: int64 `[n, k]`, and float32 `[n, k]` similarities or distances. Without a
        gallery, a row's number is never among its neighbors (its duplicates are).

    Raises:
        ValueError: k is out of range, the widths differ, or `retrieval.Index` refuses the
            embeddings or the metric.
    """
    queries, items = rows_of_sets(embeddings, gallery, metric)
    (k,) = check_ks("k", [k], items, gallery is None)
    rows = np.empty((len(queries), k), np.int64)
    scores = np.empty((len(queries), k), np.float32)
    own_rows = np.arange(len(queries)) if gallery is None else None
    index = make_index(items, metric)
    for block, block_rows, block_scores in neighbor_blocks(index, queries, k, own_rows):
        rows[block], scores[block] = block_rows, block_scores
    return rows, scores
