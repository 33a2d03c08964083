"""The nearest neighbors of queries, and which of them are relevant."""

from __future__ import annotations

import dataclasses
import functools
import logging
import numbers
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from keras_dml import relations
from keras_dml._common.blocks import slices
from keras_dml._common.checks import check_choice, items_of
from keras_dml._common.errors import ArgumentError, argument_error, as_array
from keras_dml._common.rows import rows_of_sets
from keras_dml._common.types import (
    NEIGHBORS,
    BoolArray,
    Engine,
    Float32Array,
    Int64Array,
    Metric,
    Neighbors,
)
from keras_dml.metrics.relevance import (
    RelationRelevance,
    Relevance,
    SameClassRelevance,
    check_together,
    checked_sets,
)

if TYPE_CHECKING:
    from keras_dml.retrieval import Index
    from keras_dml.retrieval.reranking import Reranked

#: Number of images from which on "auto" selects ScaNN's tree.
MANY = 200_000
# Queries for the estimate of the time of an exact search.
_TIMED_QUERIES = 16
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
    from keras_dml._common.progress import long_work_bar  # imports tqdm

    with long_work_bar(f"nearest {k} ({index.metric})", len(queries)) as bar:
        for block in slices(len(queries), min(_BLOCK, _PAIRS // (k + 1))):
            rows, scores = index.search(queries[block], k + (own_rows is not None))
            if own_rows is not None:
                left_out = rows == own_rows[block, None]
                # If more than k duplicates have lower row numbers, the query's row is not among the
                # results.
                left_out[~left_out.any(axis=1), -1] = True
                rows, scores = (found[~left_out].reshape(-1, k) for found in (rows, scores))
            yield block, rows, scores
            bar.update(len(rows))


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


@dataclasses.dataclass(frozen=True)
class RetrievalTask:
    """Queries, the items to search, and which items are relevant.

    Attributes:
        queries: Finite float32 `[n, d]`.
        items: Finite float32 `[m, d]`. Without a gallery, the same array as the queries.
        relevance: The relevance of the items.
        metric: "cosine" or "l2".
        engine: "numpy" for an exact index by NumPy. Otherwise it is by ScaNN, if ScaNN loads.
        reranked: The items in the order of a re-ranking, instead of an index.
        paired: Whether query i and item i are the same image in two embeddings.
    """

    queries: Float32Array
    items: Float32Array
    relevance: Relevance
    metric: Metric
    engine: Engine = "scann"
    reranked: Reranked | None = None
    paired: bool = False

    @property
    def own_rows(self) -> bool:
        """Whether query i is item i, and is not among its neighbors."""
        return self.paired or self.items is self.queries

    @property
    def matched(self) -> Int64Array:
        """Row numbers of the queries with a relevant item."""
        return np.flatnonzero(self.relevance.counts > 0)

    @functools.cached_property
    def index(self) -> Index:
        """The exact index of the items."""
        from keras_dml.retrieval import ExactIndex

        if self.engine == "numpy":
            return ExactIndex(self.items, self.metric)
        return make_index(self.items, self.metric)

    @property
    def by_scann(self) -> bool:
        """Whether ScaNN searches the exact index."""
        from keras_dml.retrieval import scann_loads

        return self.engine != "numpy" and scann_loads()

    def check_ks(self, name: str, ks: Iterable[int]) -> list[int]:
        """Return whole numbers from 1 to the number of items, or raise `ValueError`."""
        return check_ks(name, ks, self.items, self.own_rows)

    def neighbors(
        self, rows: np.ndarray, k: int, index: Index | None = None
    ) -> Iterator[tuple[slice, np.ndarray, BoolArray]]:
        """Yield blocks of queries with their k nearest items, and which items are relevant.

        Args:
            rows: Row numbers of the queries.
            k: Number of items.
            index: An index of the items. The default is the exact index.

        Yields:
            (slice of `rows`, items int64 `[b, k]`, whether each is relevant, bool `[b, k]`).
        """
        own_rows = rows if self.own_rows else None
        if self.reranked is not None:
            searched = self.reranked.blocks(rows, k)
        else:
            searched = neighbor_blocks(index or self.index, self.queries[rows], k, own_rows)
        for block, found, _ in searched:
            yield block, found, self.relevance.hits(rows[block], found)


def retrieval_task(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    metric: Metric,
    gallery: npt.ArrayLike | None = None,
    gallery_labels: npt.ArrayLike | None = None,
    relation: relations.RelationLike = None,
    engine: Engine = "scann",
) -> RetrievalTask:
    """Check the arguments of a retrieval score.

    Args:
        embeddings, labels, metric, gallery, gallery_labels, relation: As in `recall_at_k`.
        engine: As in `RetrievalTask`.

    Raises:
        ValueError: As in `recall_at_k`, except for K, or the relation refuses the labels, or no
            query has a relevant item.
    """
    relation = relations.get(relation)
    if relation.of_classes:
        queries, items, codes, item_codes = checked_sets(
            embeddings, labels, gallery, gallery_labels, metric
        )
        same_class = SameClassRelevance(codes, item_codes, gallery is None)
        return _with_matches(RetrievalTask(queries, items, same_class, metric, engine))
    check_together(gallery, gallery_labels)
    queries, items = rows_of_sets(embeddings, gallery, metric)
    of_queries = as_array("labels", labels)
    of_items = of_queries if gallery_labels is None else as_array("gallery_labels", gallery_labels)
    for name, given, rows in (("labels", of_queries, queries), ("gallery_labels", of_items, items)):
        if given.shape[:1] != (len(rows),):
            raise ArgumentError(
                f"{name} must have {len(rows)} rows, one for each embedding, but got shape "
                f"{given.shape}."
            )
    relevance = RelationRelevance(relation, of_queries, of_items, gallery is None)
    return _with_matches(RetrievalTask(queries, items, relevance, metric, engine))


def _with_matches(task: RetrievalTask) -> RetrievalTask:
    """Return a task in which at least one query has a relevant item, or raise `ValueError`."""
    if not len(task.matched):
        where = "another row" if task.own_rows else "a row of gallery_labels"
        raise ArgumentError(
            f"labels must contain at least one row whose class {where} also has, but got "
            f"{len(task.queries)} rows without a match. Every score would be 0 or NaN."
        )
    return task


def engine_of(
    neighbors: Neighbors, embeddings: npt.ArrayLike, gallery: npt.ArrayLike | None = None
) -> Engine:
    """Return the engine that finds the neighbors.

    If ScaNN should, but does not load, NumPy does. Instead of a tree, log how long that takes.

    Args:
        neighbors: One of `NEIGHBORS`. "exact" selects NumPy, and "scann" ScaNN's tree. "auto"
            selects ScaNN: a tree from `MANY` images on, or with a gallery from as many pairs of a
            query and an item on, and an exact search below.
        embeddings: Numbers `[n, d]`.
        gallery: Numbers `[m, d]` to search instead.

    Raises:
        ValueError: `neighbors` is unknown.
    """
    check_choice("neighbors", neighbors, NEIGHBORS)
    queries = as_array("embeddings", embeddings)
    items = queries if gallery is None else as_array("gallery", gallery)
    if neighbors == "exact" or queries.ndim != 2 or items.ndim != 2 or not len(queries):
        return "numpy"  # the exact search raises the error for a wrong shape
    from keras_dml.retrieval import scann_loads

    by_tree = neighbors == "scann" or len(queries) * len(items) >= MANY**2
    if scann_loads():
        return "scann_tree" if by_tree else "scann"
    if by_tree:
        _log_estimate(queries, items)
    return "numpy"


def _log_estimate(queries: np.ndarray, items: np.ndarray) -> None:
    """Log the time of the exact search for all queries, from the time of a few queries."""
    from keras_dml.retrieval import ExactIndex

    index = ExactIndex(items, "l2")
    few = queries[:_TIMED_QUERIES]
    start = time.perf_counter()
    index.search(few, 1)
    seconds = (time.perf_counter() - start) * len(queries) / len(few)
    logging.getLogger("keras_dml").warning(
        "The exact search for the neighbors of %d images among %d takes about %s, for each metric.",
        len(queries), len(items),
        f"{seconds:.0f} seconds" if seconds < 90 else f"{seconds / 60:,.0f} minutes",
    )  # fmt: skip
