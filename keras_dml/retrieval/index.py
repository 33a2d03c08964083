"""The interface of every index: the items of a gallery, searched by queries."""

from __future__ import annotations

import abc
import contextlib
import functools
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from keras_dml._common.blocks import slices
from keras_dml._common.checks import check_choice, check_whole
from keras_dml._common.errors import ArgumentError, argument_error, as_array, shape_error
from keras_dml._common.rows import center, centered, prepared_rows
from keras_dml._common.types import METRICS, Float32Array, Float64Array, Int64Array, Metric, StrPath
from keras_dml.retrieval.files import save_index
from keras_dml.retrieval.items import Change, Items, Removal, Upsert
from keras_dml.retrieval.products import ExactProducts
from keras_dml.retrieval.reranking import (
    Expansion,
    Reranking,
    k_reciprocal_nearest,
    named_reranking,
)
from keras_dml.retrieval.tree import RECALL_NEIGHBORS, RECALL_QUERIES
from keras_dml.retrieval.tree_searcher import sample_of

if TYPE_CHECKING:
    from keras_dml.retrieval.serving import SearchModule

# From prepared queries `[q, d]` and k to row numbers and scores, `[q, k]` each.
_Search: TypeAlias = Callable[[Float32Array, int], tuple[np.ndarray, np.ndarray]]
# Maximum number of values in memory during re-scoring: 2^18 float64, 2 MiB, stay in the cache.
_PAIR_BLOCK = 2**18


class Index(abc.ABC):
    """Items as rows of embeddings, searched for the nearest items of each query.

    A score depends only on its two vectors. It is computed in float64 from their float32 values
    (normalized for "cosine") and rounded to float32. Equal scores are ordered by the lower row
    number. Every exact index therefore returns the same ids and scores for the same items.

    Several threads can search and change the index. Searches and changes run one at a time, so a
    search sees every change that ended before it began, and each later change completely or not at
    all.

    Examples:
        >>> items = [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]
        >>> index = keras_dml.retrieval.ExactIndex(items, metric="l2")
        >>> isinstance(index, Index), index.num_items
        (True, 3)

    Args:
        embeddings: Numbers `[n, d]`, n and d at least 1, for example a memory-mapped file. They are
            copied once, to float32.
        metric: "cosine" (similarity, higher is nearer; a vector of zeros has similarity 0 to
            everything) or "l2" (Euclidean distance, lower is nearer).
        ids: Unique ids of the items in results: whole numbers or strings `[n]`. None uses row
            numbers.

    Raises:
        ValueError: The metric is unknown, items are missing, the rank is wrong, values are NaN or
            infinity (the message has the count and the rows), or ids have another length or type or
            are not unique (the message names them).
    """

    kind: ClassVar[str]

    def __init__(
        self,
        embeddings: npt.ArrayLike | Items,
        metric: Metric = "cosine",
        ids: npt.ArrayLike | None = None,
    ) -> None:
        check_choice("metric", metric, METRICS)
        self._metric: Metric = metric
        # `load_index` passes prepared items, and all of them can have been removed.
        if isinstance(embeddings, Items):
            self._items = embeddings
        else:
            self._items = Items(prepared_rows(embeddings, "embeddings", metric), ids)
            if not self.num_items:
                wanted = "an array [n, d] with at least one row"
                raise shape_error("embeddings", wanted, self._items.rows)
        self._lock = threading.RLock()
        self._stale = True  # whether the searcher must be rebuilt
        with self._ready():
            pass  # build

    @property
    def num_items(self) -> int:
        """Number of items that a search can find."""
        return len(self._items)

    @property
    def dimensions(self) -> int:
        """Length of an embedding."""
        return self._items.dimensions

    @property
    def metric(self) -> Metric:
        """ "cosine" or "l2"."""
        return self._metric

    @property
    def ids(self) -> np.ndarray:
        """Ids of the items, int64 or strings `[num_items]`."""
        with self._lock:
            return self._items.ids

    def add(self, embeddings: npt.ArrayLike, ids: npt.ArrayLike | None = None) -> None:
        """Add items after the existing items.

        The next search or `save` includes them.

        Args:
            embeddings: Numbers `[n, dimensions]`. n can be 0.
            ids: As in the constructor: None both times (the numbering continues), or new ids of the
                same type.

        Raises:
            ValueError: The dimensions differ, values are NaN or infinity, or ids are invalid as in
                `Index` or exist already. The index is then unchanged.
        """
        rows = prepared_rows(embeddings, "embeddings", self._metric)
        self._check_dimensions(rows, "embeddings")
        with self._lock:
            self._items.add(rows, ids)
            if len(rows):
                self._renew(Upsert(np.full(len(rows), -1), rows))

    def upsert(self, ids: npt.ArrayLike, embeddings: npt.ArrayLike) -> None:
        """Replace the embeddings of existing ids, and add items for new ids.

        New items come after the existing items. Searches find them as soon as this method returns.
        An index without ids takes row numbers, and with new numbers, all row numbers become
        explicit ids.

        Args:
            ids: Unique whole numbers or strings `[n]`, as in the constructor.
            embeddings: Numbers `[n, dimensions]`. n can be 0.

        Raises:
            ValueError: The dimensions differ, values are NaN or infinity, or ids are invalid as in
                `Index`. The index is then unchanged.
        """
        rows = prepared_rows(embeddings, "embeddings", self._metric)
        self._check_dimensions(rows, "embeddings")
        if not len(rows) and np.shape(ids) == (0,):
            return
        with self._lock:
            change = Upsert(self._items.rows_or_new(ids, len(rows)), rows)
            self._renew(change)
            self._items.upsert(change, ids)

    def remove(self, ids: npt.ArrayLike) -> None:
        """Remove items, possibly all of them.

        The last items take the places of the removed items, as in ScaNN. In an index without ids,
        the remaining items keep their previous row numbers as ids.

        Args:
            ids: Ids of items, in any order, and possibly repeated. Can be empty.

        Raises:
            ValueError: An id is unknown (the message names it). The index is then unchanged.
        """
        with self._lock:
            removed = np.unique(self._items.rows_of(ids, "ids"))[::-1]
            if len(removed):
                self._renew(Removal(removed))
                self._items.remove(removed)

    def rebalance(self) -> None:  # noqa: B027, most kinds train nothing
        """Retrain the trained parts of the index on the current items.

        Searches and changes in other threads wait until it returns. If the training fails, the
        index is unchanged. An index without trained parts does nothing.
        """

    def search(
        self,
        queries: npt.ArrayLike,
        k: int,
        allowed: npt.ArrayLike | None = None,
        *,
        rerank: str | Reranking | None = None,
    ) -> tuple[np.ndarray, Float32Array]:
        """Find the k nearest items of each query, nearest first.

        With `allowed`, the search is exact for every kind of index. Each query is compared with
        only the allowed items, so k items are found even if few items are allowed.

        With `rerank="expand_queries"`, a first search expands the queries, and a second search
        takes the expanded queries. With `rerank="k_reciprocal"`, the results are in the order of
        `k_reciprocal_distances`, exact for every kind of index. The queries of one call then
        influence each other.

        Args:
            queries: Finite numbers `[q, dimensions]`. q can be 0.
            k: From 1 to `num_items`.
            allowed: None (all items), or the items that can be found: a mask bool `[num_items]` in
                the order of `ids`, or ids in any order, possibly repeated. Ids stay valid if other
                threads change the index.
            rerank: None, "expand_queries", or "k_reciprocal", for an index with the metric
                "cosine". For other arguments, a `functools.partial` of the function:
                `functools.partial(expand_queries, k=5)`.

        Returns:
            `(ids, scores)`: ids `[q, k]`, int64 or strings, and similarities ("cosine") or
            distances ("l2", and with "k_reciprocal") float32 `[q, k]`. If fewer than k items are
            allowed, the number of columns is the number of allowed items.

        Raises:
            ValueError: k is out of range, the rank is wrong, the dimensions differ, values are NaN
                or infinity, the mask has another length, an id is unknown (the message names it),
                `rerank` is something else, or the index has too many items for it.

        Examples:
            >>> index = ExactIndex([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]], ids=["a", "b", "c"])
            >>> index.search([[1.0, 0.1]], k=2, allowed=["b", "c"])[0]
            array([['b', 'c']], dtype='<U1')
        """
        prepared = prepared_rows(queries, "queries", self._metric)
        self._check_dimensions(prepared, "queries")
        with self._ready():
            k = _checked_k(k, self.num_items)
            among = None if allowed is None else self._among(allowed)
            if rerank is None:
                rows, scores = self._search(prepared, k, among)
            else:
                rows, scores = self._reranked(prepared, k, among, rerank)
            return self._items.ids_of(rows), scores

    def _search(
        self, queries: Float32Array, k: int, among: Int64Array | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return row numbers and scores of prepared queries, of all items or `among`."""
        if among is None:
            return self._nearest(queries, min(k, self.num_items))
        return self._exactly(queries, min(k, len(among)), among)

    def _reranked(
        self, queries: Float32Array, k: int, among: Int64Array | None, rerank: object
    ) -> tuple[np.ndarray, np.ndarray]:
        name, arguments = named_reranking(rerank)
        if self._metric != "cosine":
            advice = 'Build the index with metric="cosine".'
            raise argument_error("rerank", 'None for metric="l2"', rerank, advice=advice)
        if name == "augment_items":
            wanted = '"expand_queries" or "k_reciprocal" in a search'
            advice = "Augment the items before: build_index(augment_items(embeddings))."
            raise argument_error("rerank", wanted, rerank, advice=advice)
        if name == "expand_queries":
            expansion = Expansion(**arguments)
            nearest = self._search(queries, expansion.k, among)
            return self._search(expansion(queries, self._rows, *nearest), k, among)
        items = self._rows if among is None else self._rows[among]
        k = min(k, len(items))
        rows, distances = k_reciprocal_nearest(queries, items, k, arguments)
        return rows if among is None else among[rows], distances

    def embeddings_of(self, ids: npt.ArrayLike) -> Float32Array:
        """Return the stored embeddings of items: normalized for "cosine".

        Args:
            ids: Ids of items, `[m]`, in any order, and possibly repeated.

        Returns:
            float32 `[m, dimensions]`, in the order of `ids`.

        Raises:
            ValueError: An id is unknown (the message names it).
        """
        with self._lock:
            return self._items.rows[self._items.rows_of(ids, "ids")]

    def save(self, path: StrPath) -> None:
        """Write the index to a folder for `load_index`. The folder can be moved.

        The folder contains `index.json` (kind, metric, sizes, parameters), `embeddings.npy`
        (float32, normalized for "cosine"), `ids.npy` if the items have ids, and files of the kind
        of index. It is written under a temporary name and then renamed. An existing index is
        removed last.

        Args:
            path: The folder to write. Its parent must exist.

        Raises:
            ValueError: The parent of `path` is missing, or `path` exists and is not an index.
        """
        with self._ready():
            parameters = {"kind": self.kind, "metric": self._metric, **self.parameters()}
            save_index(path, self._items, parameters, self.write_searcher)

    def serving_module(self) -> SearchModule:
        """Return the index as a `tf.Module` for a SavedModel.

        The module searches exactly, except for a ScaNN tree, and then needs only TensorFlow.

        Returns:
            A module whose `search(embeddings, k)` takes a float32 tensor `[q, dimensions]` and a
            Python number and returns `(ids, scores)` as `search` does. See
            `retrieval.serving.SearchModule` for its precision.

        Raises:
            ValueError: The index is empty.
        """
        from keras_dml.retrieval.serving import SearchModule

        with self._ready():
            if not self.num_items:
                raise ArgumentError("index must have items to be served, but got an empty index.")
            middle = center(self._rows, self._metric)
            rows = centered(self._rows, middle)
            return SearchModule(rows, self._items.ids, self._metric, middle)

    def parameters(self) -> dict[str, object]:
        """Return the JSON values by name that `save` writes for `load_index`."""
        return {}

    def write_searcher(self, folder: pathlib.Path) -> None:  # noqa: B027, as `rebalance`
        """Write the state that was trained on the items into `folder`, a `pathlib.Path`."""

    @property
    def _rows(self) -> Float32Array:
        """The rows of all items."""
        return self._items.rows

    @contextlib.contextmanager
    def _ready(self) -> Iterator[None]:
        """Enter a context in which all items can be searched, and other threads wait."""
        with self._lock:
            if self._stale and self.num_items:
                self._build()
                self._stale = False
            yield

    def _renew(self, change: Change) -> None:
        """Apply a change of the items to the searcher, or mark the searcher as stale."""
        self.__dict__.pop("_products", None)  # of other items
        fresh, self._stale = not self._stale, True
        self._stale = not (fresh and self._update(change))

    def _check_dimensions(self, rows: np.ndarray, name: str) -> None:
        if rows.shape[1] != self.dimensions:
            wanted = f"rows of {self.dimensions} dimensions, as in the index"
            raise shape_error(name, wanted, rows)

    def _among(self, allowed: npt.ArrayLike) -> Int64Array | None:
        """Return the ascending numbers of the rows that can be found. None for all rows."""
        mask = as_array("allowed", allowed)
        if mask.dtype != bool:
            rows = np.unique(self._items.rows_of(allowed, "allowed"))
        elif mask.shape == (self.num_items,):
            rows = np.flatnonzero(mask)
        else:
            raise ArgumentError(
                f"allowed must be ids of items, or a mask with one bool for each of the "
                f"{self.num_items} items, but got a mask of shape {mask.shape}."
            )
        return None if len(rows) == self.num_items else rows

    @functools.cached_property
    def _products(self) -> ExactProducts:
        return ExactProducts(self._rows, self._metric)

    def _exactly(
        self, queries: Float32Array, k: int, among: Int64Array | None = None
    ) -> tuple[Int64Array, Float32Array]:
        """Return row numbers and scores, `[q, k]` each, by products with all rows or `among`."""

        def search(block: Float32Array, k: int) -> tuple[Int64Array, Float32Array]:
            nearest, wider = self._products.candidates(block, k, among)
            rows, scores = self._ranked(block, nearest, k)
            for query, candidates in wider:
                own = slice(query, query + 1)
                rows[own], scores[own] = self._ranked(block[own], candidates[None], k)
            return rows, scores

        return in_blocks(search, queries, k, self._products.block if k else 1)

    @abc.abstractmethod
    def _build(self) -> None:
        """Prepare the search of all `_rows`."""

    def _update(self, change: Change) -> bool:
        """Apply a change to the searcher before the items change. False requires a rebuild.

        Most kinds train nothing, so a rebuild is equally good.
        """
        return False

    @abc.abstractmethod
    def _nearest(self, queries: Float32Array, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return row numbers and scores, `[q, k]` each, of prepared queries."""

    def _ranked(
        self, queries: Float32Array, candidates: np.ndarray, k: int
    ) -> tuple[Int64Array, Float32Array]:
        """Return the k best candidates of each query by (score, row).

        Args:
            queries: Prepared rows float32 `[q, d]`.
            candidates: Row numbers `[q, c]`, c at least k, in any order.

        Returns:
            `(rows, scores)`, `[q, k]` each, nearest first.
        """
        candidates = candidates.astype(np.int64, copy=False)
        scores = np.empty(candidates.shape, np.float32)
        width = max(1, _PAIR_BLOCK // self.dimensions)
        for block in slices(len(queries), width // candidates.shape[1]):
            for columns in slices(candidates.shape[1], width):
                items = self._rows[candidates[block, columns]]
                scores[block, columns] = self._scores(queries[block], items)
        order = np.lexsort((candidates, -self._nearness(scores)), axis=1)[:, :k]
        return np.take_along_axis(candidates, order, 1), np.take_along_axis(scores, order, 1)

    def _recall_measure(self) -> Callable[[_Search], float]:
        """Return a function that measures the recall of a search of prepared queries.

        The queries are 1,000 of the items, or all if fewer. The recall is the fraction of their
        exact 10 nearest other items that the search finds. An item with an equal score counts as
        found.
        """
        sample = sample_of(self.num_items, RECALL_QUERIES)
        queries, k = self._rows[sample], min(RECALL_NEIGHBORS, self.num_items - 1)
        exact = self._nearness(self._exactly(queries, k + 1)[1])

        def recall(search: _Search) -> float:
            if not k:
                return 1.0
            rows, scores = search(queries, k + 1)
            found = (self._nearness(scores) >= exact[:, -1:]) & (rows != sample[:, None])
            return float(np.minimum(found.sum(axis=1), k).sum() / (k * len(sample)))

        return recall

    def _nearness(self, scores: Float32Array) -> Float32Array:
        return scores if self._metric == "cosine" else -scores

    def _scores(self, queries: Float32Array, items: Float32Array) -> Float64Array:
        """Compute the scores `[q, c]` of queries `[q, d]` with items `[q, c, d]`."""
        # Products of two float32 are exact in float64, and their sum is accurate to about 1e-16.
        # After rounding to float32, equal pairs therefore have equal scores for any order of
        # summation. Distances come from differences, because |x|² - 2x·y + |y|² would lose small
        # distances.
        exact = items.astype(np.float64)
        if self._metric == "cosine":
            return np.einsum("qd,qcd->qc", queries.astype(np.float64), exact)
        exact -= queries[:, None]
        return np.sqrt(np.einsum("qcd,qcd->qc", exact, exact))


def in_blocks(
    search: _Search, queries: Float32Array, k: int, step: int
) -> tuple[Int64Array, Float32Array]:
    """Search blocks of `step` queries, and join their row numbers and scores, `[q, k]` each."""
    rows = np.empty((len(queries), k), np.int64)
    scores = np.empty((len(queries), k), np.float32)
    for block in slices(len(queries) if k else 0, step):
        rows[block], scores[block] = search(queries[block], k)
    return rows, scores


def _checked_k(k: object, count: int) -> int:
    if not count:
        raise ArgumentError("index must have items to search, but got an empty index.")
    return check_whole("k", k, least=1, most=count)
