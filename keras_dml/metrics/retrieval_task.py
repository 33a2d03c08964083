"""Queries and the items to search: R@K, average precision at R, and R-precision of each query."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from keras_dml import relations
from keras_dml._common.blocks import slices
from keras_dml._common.errors import ArgumentError, as_array
from keras_dml._common.rows import prepared_rows, rows_of_sets
from keras_dml._common.types import BoolArray, Float32Array, Float64Array, Int64Array, Metric
from keras_dml.metrics.bar import long_work_bar
from keras_dml.metrics.neighbors import check_ks, make_index, neighbor_blocks
from keras_dml.metrics.relevance import (
    RelationRelevance,
    Relevance,
    SameClassRelevance,
    check_together,
    checked_sets,
)

if TYPE_CHECKING:
    from keras_dml.retrieval import Index

# Neighbors of the first approximate search for the first match, and the factor to the next search.
# Most queries have their first match among few neighbors.
_FEW_NEIGHBORS, _DEEPER = 16, 8


@dataclasses.dataclass(frozen=True)
class RetrievalTask:
    """Queries, the items to search, and which items are relevant.

    Attributes:
        queries: Finite float32 `[n, d]`.
        items: Finite float32 `[m, d]`. Without a gallery, the same array as the queries.
        relevance: The relevance of the items.
        metric: "cosine" or "l2".
    """

    queries: Float32Array
    items: Float32Array
    relevance: Relevance
    metric: Metric

    @property
    def own_rows(self) -> bool:
        """Whether query i is item i, and is not among its neighbors."""
        return self.items is self.queries

    @property
    def matched(self) -> Int64Array:
        """Row numbers of the queries with a relevant item."""
        return np.flatnonzero(self.relevance.counts > 0)

    @functools.cached_property
    def index(self) -> Index:
        """The exact index of the items."""
        return make_index(self.items, self.metric)

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
        searched = neighbor_blocks(index or self.index, self.queries[rows], k, own_rows)
        for block, found, _ in searched:
            yield block, found, self.relevance.hits(rows[block], found)

    def scores(
        self,
        ks: Sequence[int],
        *,
        ranked: bool = True,
        index: Index | None = None,
        rows: Int64Array | None = None,
    ) -> dict[str, Float64Array]:
        """Return the value of each query for each score, `[len(rows)]`. NaN for no value.

        Args:
            ks: Values of K. Can be empty.
            ranked: Whether to compute MAP@R and R-precision, which need as many neighbors as
                matches.
            index: An index of the items. The default is the exact index.
            rows: Row numbers of the queries. The default is all queries.

        Returns:
            "recall@K" for each K (1 for a match among the K nearest items, else 0), "map@r", and
            "r_precision".
        """
        rows = np.arange(len(self.queries)) if rows is None else rows
        counts = self.relevance.counts[rows]
        matched, most = np.flatnonzero(counts > 0), max(ks, default=0)
        searched = np.zeros(len(rows), np.int64)
        rank, average, precision = (np.full(len(rows), start) for start in (np.inf, np.nan, np.nan))
        for group in _by_depth(matched, counts) if ranked else ():
            depth = int(counts[group].max())
            for block, _, hits in self.neighbors(rows[group], depth, index):
                places = group[block]
                rank[places] = _first(hits)
                average[places], precision[places] = _precisions(hits, counts[places])
            searched[group] = depth
        missed = matched[np.isinf(rank[matched]) & (searched[matched] < most)]
        if index is None and len(missed):
            rank[missed] = self._ranks(rows[missed], ks)
        depth = 0 if index is not None else most
        while depth < most:
            depth = min(max(_FEW_NEIGHBORS, _DEEPER * depth), most)
            missed = matched[np.isinf(rank[matched]) & (searched[matched] < depth)]
            for block, _, hits in self.neighbors(rows[missed], depth, index) if len(missed) else ():
                rank[missed[block]] = _first(hits)
        values = {f"recall@{k}": (rank < k).astype(np.float64) for k in ks}
        return values | {"map@r": average, "r_precision": precision}

    def _ranks(self, rows: Int64Array, ks: Sequence[int]) -> Float64Array:
        """Return the rank of the first match of each query with one, from 0, as far as K needs it.

        For any K, this takes one pass over the pairs without sorting. The exact index decides only
        the cases that float32 products cannot, mostly ties.
        """
        from keras_dml.retrieval.products import ExactProducts

        products = ExactProducts(prepared_rows(self.items, "items", self.metric), self.metric)
        low, high = np.empty((2, len(rows)), np.int64)
        with long_work_bar("counting nearer items", len(rows)) as advance:
            for block in slices(len(rows), products.block):
                some = rows[block]
                queries = prepared_rows(self.queries[some], "queries", self.metric)
                own = some if self.own_rows else None
                bounds = products.rank_bounds(queries, self.relevance.mask(some), own)
                low[block], high[block] = bounds
                advance(len(some))
        ranks = high.astype(np.float64)
        unsure = {k: (low < k) & (high >= k) for k in ks}
        places = np.flatnonzero(np.any(list(unsure.values()), axis=0))
        if len(places):
            deepest = max(k for k in ks if unsure[k].any())
            for block, _, hits in self.neighbors(rows[places], deepest):
                found = places[block]
                ranks[found] = np.minimum(_first(hits), ranks[found])
        return ranks


def retrieval_task(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    metric: Metric,
    gallery: npt.ArrayLike | None = None,
    gallery_labels: npt.ArrayLike | None = None,
    relation: relations.RelationLike = None,
) -> RetrievalTask:
    """Check the arguments of a retrieval score.

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
        return _with_matches(RetrievalTask(queries, items, same_class, metric))
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
    return _with_matches(RetrievalTask(queries, items, relevance, metric))


def _with_matches(task: RetrievalTask) -> RetrievalTask:
    """Return a task in which at least one query has a relevant item, or raise `ValueError`."""
    if not len(task.matched):
        where = "another row" if task.own_rows else "a row of gallery_labels"
        raise ArgumentError(
            f"labels must contain at least one row whose class {where} also has, but got "
            f"{len(task.queries)} rows without a match. Every score would be 0 or NaN."
        )
    return task


def known_mean(values: Float64Array) -> float:
    """Return the mean of the values that are not NaN, or NaN without any."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _first(hits: BoolArray) -> Float64Array:
    """Return the rank of the first hit, from 0, or infinity."""
    return np.where(hits.any(axis=1), hits.argmax(axis=1), np.inf)


def _by_depth(rows: Int64Array, relevant: Int64Array) -> list[Int64Array]:
    """Group queries by their number of matches: up to 16, up to 32, up to 64, and so on.

    One large class then does not deepen every search.
    """
    rows = rows[np.argsort(relevant[rows], kind="stable")]
    depths = np.ceil(np.log2(np.maximum(relevant[rows], 16))).astype(np.int64)
    return np.split(rows, np.flatnonzero(np.diff(depths)) + 1) if len(rows) else []


def _precisions(hits: BoolArray, relevant: Int64Array) -> tuple[Float64Array, Float64Array]:
    """Return average precision at R and R-precision of each query, `[b]`.

    Args:
        hits: Whether each of the nearest items is a match, `[b, k]`.
        relevant: R of each query, from 1 to k, `[b]`.
    """
    ranks = np.arange(1, hits.shape[1] + 1)
    hits = hits & (ranks <= relevant[:, None])
    so_far = np.cumsum(hits, axis=1) / ranks
    return (hits * so_far).sum(axis=1) / relevant, hits.sum(axis=1) / relevant
