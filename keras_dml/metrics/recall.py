"""Recall at K among the rows of one set, or in a gallery."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from keras_dml._common.checks import check_choice, shown
from keras_dml._common.errors import ArgumentError
from keras_dml._common.labels import joined_labels, plain_labels
from keras_dml._common.rows import finite_rows, normalized
from keras_dml._common.types import METRICS, Metric
from keras_dml.metrics.bar import long_work_bar
from keras_dml.metrics.ranks import rank_bounds

if TYPE_CHECKING:
    from keras_dml.retrieval import Index

_Rows = npt.NDArray[np.float32]

# Queries per block, and neighbors of a block: about 65 bytes each.
_BLOCK, _PAIRS = 4096, 2**22


def make_index(embeddings: npt.ArrayLike, metric: Metric) -> Index:
    """Build the exact index of `retrieval.build_index`."""
    # Imported here, because `import keras_dml` does not import indexes.
    from keras_dml.retrieval import build_index

    return build_index(embeddings, metric)


def _checked(
    embeddings: npt.ArrayLike, gallery: npt.ArrayLike | None, metric: Metric
) -> tuple[_Rows, _Rows]:
    """Return queries and items as finite float32 rows: the same array without a gallery."""
    check_choice("metric", metric, METRICS)
    queries = finite_rows(embeddings, "embeddings")
    items = queries if gallery is None else finite_rows(gallery, "gallery")
    if not len(queries) or not len(items) or queries.shape[1] != items.shape[1]:
        shapes = f"shape {queries.shape}"
        if gallery is not None:
            shapes = f"shapes {queries.shape} and {items.shape}"
        raise ArgumentError(
            "embeddings and gallery must have a row or more each, of the same width. "
            f"Received: {shapes}"
        )
    return queries, items


def _check_k(name: str, k: int, items: _Rows, own_rows: bool) -> None:
    most = len(items) - own_rows
    if isinstance(k, bool) or not isinstance(k, numbers.Integral) or not 1 <= k <= most:
        what = "other items" if own_rows else "items in gallery"
        raise ArgumentError(
            f"{name} must be whole numbers from 1 to the number of {what}, {most}. "
            f"Received: {name}={shown(k)}"
        )


def listed(ks: Iterable[int]) -> list[int]:
    """Return the values of K as a list, or raise `ValueError` if it is empty."""
    try:
        values = list(ks)
    except TypeError:  # one number
        values = []
    if not values:
        raise ArgumentError(f"ks must be a list of at least one K. Received: ks={shown(ks)}")
    return values


def checked_labels(name: str, given: npt.ArrayLike, rows: int) -> np.ndarray:
    """Return labels as an array `[rows]` of integers, strings, or bytes, or raise `ValueError`."""
    labels = plain_labels(name, given)
    if labels.shape != (rows,):
        raise ArgumentError(
            f"{name} must have shape [{rows}], one for each row of "
            f"{'gallery' if name == 'gallery_labels' else 'embeddings'}. "
            f"Received: {name} of shape {labels.shape}"
        )
    return labels


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
        step = max(1, min(_BLOCK, _PAIRS // (k + 1)))
        for start in range(0, len(queries), step):
            block = slice(start, min(start + step, len(queries)))
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
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
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
    queries, items = _checked(embeddings, gallery, metric)
    _check_k("k", k, items, gallery is None)
    k = int(k)
    rows = np.empty((len(queries), k), np.int64)
    scores = np.empty((len(queries), k), np.float32)
    own_rows = np.arange(len(queries)) if gallery is None else None
    index = make_index(items, metric)
    for block, block_rows, block_scores in neighbor_blocks(index, queries, k, own_rows):
        rows[block], scores[block] = block_rows, block_scores
    return rows, scores


def recall_at_k(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    ks: Iterable[int],
    metric: Metric = "cosine",
    gallery: npt.ArrayLike | None = None,
    gallery_labels: npt.ArrayLike | None = None,
) -> dict[int, float]:
    """Compute R@K: the fraction of rows with a row of their class among the K nearest other rows.

    The protocol of CUB, Cars-196, and Stanford Online Products (Song et al., 2016, "Deep metric
    learning via lifted structured feature embedding", section 5): every row is a query against all
    other rows, and a query whose class has no other item counts as a miss. With a gallery, the
    protocol of In-Shop (Liu et al., 2016, "DeepFashion", section 4.2): the search covers all rows
    of the gallery, and a query whose class is not in the gallery counts as a miss.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 3, 0], [-4, 0, 3], [0, 0, 5]], "float32") / 5
        >>> recall_at_k(z, labels, ks=[1, 2])
        {1: 1.0, 2: 1.0}

    Args:
        embeddings: Numbers `[n, d]`, n at least 2 (1 with a gallery).
        labels: Class of each row, `[n]`, as whole numbers (also floats), strings, or bytes.
        ks: Values of K, each from 1 to n - 1, or to m.
        metric: "cosine" or "l2".
        gallery: Numbers `[m, d]`, m at least 1, to search instead of the other rows.
        gallery_labels: Class of each row of the gallery, `[m]`.

    Returns:
        `{K: fraction}` in the order of `ks`.

    Raises:
        ValueError: `ks` is empty, a K is out of range, labels have another shape, only one of
            gallery and gallery_labels is set, the widths differ, or `retrieval.Index` refuses the
            embeddings or the metric.
    """
    ks = listed(ks)
    queries, items, codes, item_codes = checked_sets(
        embeddings, labels, gallery, gallery_labels, metric
    )
    for k in ks:
        _check_k("ks", k, items, gallery is None)
    ks = [int(k) for k in ks]  # a NumPy scalar of 8 bits would overflow
    low, high = _rank_bounds(queries, codes, items, item_codes, metric)
    hits = {k: int(np.count_nonzero(high < k)) for k in ks}
    unsure = {k: (low < k) & (high >= k) for k in ks}
    # The index decides cases that float32 products cannot, mostly ties.
    rows = np.flatnonzero(np.any(list(unsure.values()), axis=0))
    if len(rows):
        deepest = max(k for k in ks if unsure[k].any())
        own_rows = rows if gallery is None else None
        index = make_index(items, metric)
        for block, found, _ in neighbor_blocks(index, queries[rows], deepest, own_rows):
            same_class = item_codes[found] == codes[rows[block], None]
            for k in hits:
                among = same_class[:, :k].any(axis=1) & unsure[k][rows[block]]
                hits[k] += int(np.count_nonzero(among))
    return {k: count / len(queries) for k, count in hits.items()}


def checked_sets(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    gallery: npt.ArrayLike | None,
    gallery_labels: npt.ArrayLike | None,
    metric: Metric,
) -> tuple[_Rows, _Rows, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return queries and items as finite float32 rows, and their class numbers.

    Returns:
        `(queries, items, codes, item_codes)`. Without a gallery, the items are the queries:
        `items is queries`.

    Raises:
        ValueError: As in `recall_at_k`, except for K.
    """
    if (gallery is None) != (gallery_labels is None):
        missing = "gallery" if gallery is None else "gallery_labels"
        raise ArgumentError(
            f"gallery and gallery_labels must be given together. Received: {missing}=None"
        )
    queries, items = _checked(embeddings, gallery, metric)
    classes = checked_labels("labels", labels, len(queries))
    if gallery_labels is None:
        codes = class_numbers(classes)
        return queries, items, codes, codes
    item_classes = checked_labels("gallery_labels", gallery_labels, len(items))
    joined = joined_labels([("labels", classes), ("gallery_labels", item_classes)])
    both = class_numbers(joined)
    return queries, items, both[: len(queries)], both[len(queries) :]


def class_numbers(labels: np.ndarray) -> npt.NDArray[np.int64]:
    """Convert labels `[n]` of one kind to class numbers from 0, int64 `[n]`."""
    return np.unique(labels, return_inverse=True)[1]


def _rank_bounds(
    queries: _Rows, codes: np.ndarray, items: _Rows, item_codes: np.ndarray, metric: Metric
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    own_rows = items is queries
    if metric == "cosine":
        queries = normalized(queries)
        items = queries if own_rows else normalized(items)
    return rank_bounds(queries, codes, items, item_codes, metric, own_rows)
