"""The interface of every index: a gallery's items, searched by queries."""

from __future__ import annotations

import abc
import concurrent.futures
import contextlib
import functools
import numbers
import os
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ClassVar, NoReturn

import numpy as np
import numpy.typing as npt

from keras_dml.checks import as_array, check_choice, shown
from keras_dml.errors import ArgumentError, ArgumentTypeError
from keras_dml.nearness import METRICS, Metric
from keras_dml.retrieval.changes import Change, Removal, Upsert
from keras_dml.retrieval.files import save_index
from keras_dml.retrieval.items import Items, checked_ids
from keras_dml.retrieval.products import ExactProducts
from keras_dml.retrieval.rows import prepared_rows
from keras_dml.retrieval.turns import Turns

if TYPE_CHECKING:
    from keras_dml.retrieval.serving import SearchModule

# Numbers held at once while candidates are scored again: 2^18 float64, 2 MiB, stay in the cache.
_PAIR_BLOCK = 2**18


class Index(abc.ABC):
    """Items as rows of embeddings, searched for the nearest to each query.

    A score belongs to a pair of vectors alone: it is computed in float64 from their float32
    values (normalised ones for "cosine") and rounded to float32. Equal scores are ordered by
    the lower row number. So every exact index gives the same ids and scores for the same items.

    May be searched and changed by several threads at once: a search sees the items of one moment,
    every change that had ended when it began and each later one whole or not at all, each item with
    its own id.

    Examples:
        >>> items = [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]
        >>> index = keras_dml.retrieval.ExactIndex(items, metric="l2")
        >>> isinstance(index, Index), index.num_items
        (True, 3)

    Args:
        embeddings: numbers `[n, d]`, n and d at least 1, a memory-mapped file for instance; copied
            once, to float32.
        metric: "cosine" (similarity, higher is nearer; a vector of zeros has similarity 0 to
            everything) or "l2" (Euclidean distance, lower is nearer).
        ids: what `search` calls the items: whole numbers or strings `[n]`, no two the same. None:
            their row numbers.

    Raises:
        ValueError: unknown metric, no items, wrong rank, NaN or infinity (counted, rows named),
            ids of another length or type or more than once (named).
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
        # Items come from `load_index`, prepared already; all of them may have been removed.
        if isinstance(embeddings, Items):
            self._items = embeddings
        else:
            self._items = Items(prepared_rows(embeddings, "embeddings", metric), ids)
            if not self.num_items:
                raise ArgumentError(
                    "embeddings must hold at least one row. "
                    f"Received: embeddings of shape {self._items.rows.shape}"
                )
        self._turns = Turns()
        # How many of the items the searcher knows, and whether it must be built of them anew.
        self._built, self._stale, self._first = 0, True, True
        self._begin_rebalancing = threading.Lock()
        self._rebalancing: concurrent.futures.Future[None] | None = None
        # What has changed since another searcher began to be trained.
        self._changes: list[Change] | None = None
        with self._ready():
            self._first = False

    def __reduce__(self) -> NoReturn:
        raise ArgumentTypeError(
            "an index must be kept by index.save(folder) and read by retrieval.load_index(folder): "
            "its searcher and its locks can be neither pickled nor copied. "
            f"Received: {type(self).__name__} of {self.num_items} items"
        )

    @property
    def num_items(self) -> int:
        """Number of items that can be found."""
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
        """What `search` calls the items, int64 or strings `[num_items]`."""
        return self._items.ids

    def add(self, embeddings: npt.ArrayLike, ids: npt.ArrayLike | None = None) -> None:
        """More items, behind those that are there.

        The next search or `save` takes them in: it joins all that was added since the last one.

        Args:
            embeddings: numbers `[n, dimensions]`; n may be 0.
            ids: as when the index was built: None then and now (the numbering goes on), or
                new ones of the same type.

        Raises:
            ValueError: other dimensions, NaN or infinity, ids as in `Index` or that are there
                already; the index is left as it was.
        """
        rows = prepared_rows(embeddings, "embeddings", self._metric)
        self._check_dimensions(rows, "embeddings")
        self._items.add(rows, ids)

    def upsert(self, ids: npt.ArrayLike, embeddings: npt.ArrayLike) -> None:
        """Items under these ids: those that are there get other embeddings, the rest are new.

        New ones come behind those that are there. When this returns, searches find them. An index
        that was built without ids takes row numbers; new numbers make all of them ids as if given.

        Args:
            ids: whole numbers or strings `[n]`, as when the index was built; no two the same.
            embeddings: numbers `[n, dimensions]`; n may be 0.

        Raises:
            ValueError: other dimensions, NaN or infinity, ids as in `Index`; the index is left as
                it was.
        """
        rows = prepared_rows(embeddings, "embeddings", self._metric)
        self._check_dimensions(rows, "embeddings")
        if not len(rows) and np.shape(ids) == (0,):
            return
        with self._changing():
            places = self._items.rows_or_new(ids, len(rows))
            new = places < 0
            self._renew(Upsert(places, rows))
            self._items.replace(places[~new], rows[~new])
            if new.any():
                self._items.append(rows[new], checked_ids(ids, len(rows))[new])

    def remove(self, ids: npt.ArrayLike) -> None:
        """Take items out, all of them if these are all.

        The last items take their places in the order of the rest, as ScaNN has it. What is left of
        an index that was built without ids keeps its row numbers of before as ids.

        Args:
            ids: of items, in any order and more than once if you like; none is nothing to do.

        Raises:
            ValueError: ids that no item has (named); the index is left as it was.
        """
        with self._changing():
            removed = np.unique(self._items.rows_of(ids, "ids", self._built))[::-1]
            if len(removed):
                self._renew(Removal(removed))
                self._items.remove(removed)

    def rebalance(self, wait: bool = True) -> concurrent.futures.Future[None]:
        """Train anew, on the items that are there now, what the index has trained.

        Meanwhile the index is searched and changed as before; the new searcher is brought up to
        date with what has changed and takes the place of the old one between two searches. Memory:
        a second searcher, and a copy of the items if they are changed in place. An index that has
        trained nothing has nothing to do.

        Args:
            wait: whether to return when it is done. A process that ends waits for it, too.

        Returns:
            A future whose `result()` raises what has failed: then the index is as it was. While
            one is under way, that one.
        """
        with self._begin_rebalancing:
            future = self._rebalancing
            if future is None or future.done():
                future = self._rebalancing = concurrent.futures.Future()
                threading.Thread(
                    target=_complete, args=(future, self._rebalance), name="rebalance"
                ).start()
        if wait:
            future.result()
        return future

    def search(
        self, queries: npt.ArrayLike, k: int, allowed: npt.ArrayLike | None = None
    ) -> tuple[np.ndarray, npt.NDArray[np.float32]]:
        """The k nearest items of each query, nearest first.

        Among `allowed` items the search is exact, whatever the index: each query is compared with
        them and no others, so that k are found however few of the items they are.

        Args:
            queries: finite numbers `[q, dimensions]`; q may be 0.
            k: from 1 to `num_items`.
            allowed: None (all items), or those that may be found: a mask bool `[num_items]` in the
                order of `ids`, or ids, in any order and more than once if you like. While other
                threads change the index, ids mean the same items.

        Returns:
            `(ids, scores)`: ids `[q, k]`, int64 or strings, and similarities ("cosine") or
            distances ("l2") float32 `[q, k]`. Where fewer than k items are allowed, so many columns
            as there are, none for none.

        Raises:
            ValueError: k out of range, wrong rank, other dimensions, NaN or infinity; a mask of
                another length, ids that no item has (named).

        Examples:
            >>> index = ExactIndex([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]], ids=["a", "b", "c"])
            >>> index.search([[1.0, 0.1]], k=2, allowed=["b", "c"])[0]
            array([['b', 'c']], dtype='<U1')
        """
        _check_k(k, self.num_items)
        prepared = prepared_rows(queries, "queries", self._metric)
        self._check_dimensions(prepared, "queries")
        k = int(k)
        with self._ready():
            _check_k(k, self._built)  # items may have been removed
            among = None if allowed is None else self._among(allowed)
            if among is not None:
                rows, scores = self._exactly(prepared, min(k, len(among)), among)
            else:
                rows = np.empty((len(prepared), k), np.int64)
                scores = np.empty((len(prepared), k), np.float32)
                for start in range(0, len(prepared), self._block):
                    block = slice(start, start + self._block)
                    rows[block], scores[block] = self._nearest(prepared[block], k)
            return self._items.ids_of(rows), scores

    def embeddings_of(self, ids: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """The embeddings of items, as the index holds them: normalised for "cosine".

        Args:
            ids: of items, `[m]`, in any order and more than once if you like.

        Returns:
            float32 `[m, dimensions]`, in the order of `ids`.

        Raises:
            ValueError: ids that no item has (named).
        """
        # Without a searcher, which may have to be trained first.
        with self._turns.together(lambda: False, lambda: None), self._items.held():
            return self._items.rows[self._items.rows_of(ids, "ids", self.num_items)]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index as a folder that `load_index` reads; it may be moved.

        `index.json` (kind, metric, sizes, parameters), `embeddings.npy` (float32; normalised
        for "cosine"), `ids.npy` if ids were given, and what the kind of index adds. Written
        under a temporary name and then renamed; an index already there is removed last.

        Args:
            path: the folder to write; its parent must exist.

        Raises:
            ValueError: the parent of `path` is missing, or `path` exists and is no index.
        """
        with self._ready():
            save_index(
                path,
                self._items.first(self._built),
                kind=self.kind,
                metric=self._metric,
                parameters=self.parameters(),
                write_searcher=self.write_searcher,
            )

    @abc.abstractmethod
    def serving_module(self) -> SearchModule:
        """The index as a `tf.Module` to go inside a SavedModel.

        Returns:
            A module whose `search(embeddings, k)` takes a float32 tensor `[q, dimensions]` and a
            Python number and gives `(ids, scores)` as `search` does; see
            `retrieval.serving.SearchModule` for how precisely.
        """

    def parameters(self) -> dict[str, object]:
        """What `save` writes beside items and metric for `load_index`: JSON values by name."""
        return {}

    def write_searcher(self, folder: pathlib.Path) -> None:  # noqa: B027, most kinds train nothing
        """Write what was trained on the items into `folder`, a `pathlib.Path`."""

    @property
    def _rows(self) -> npt.NDArray[np.float32]:
        """Those that can be searched: not what another thread has added since."""
        return self._items.rows[: self._built]

    @contextlib.contextmanager
    def _ready(self) -> Iterator[None]:
        """Within it all items that were there before are searched, and nothing changes.

        What has been added is taken in when nobody searches; searches that begin then wait.
        """
        with self._turns.together(self._behind, self._catch_up):
            yield

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Within it nobody searches or adds; the searcher knows all items, or is stale."""
        with self._turns.alone(), self._items.held():
            self._take_in()
            yield
            self._built = self.num_items

    def _behind(self) -> bool:
        count = self.num_items
        return self._built != count or (self._stale and count > 0)

    def _catch_up(self) -> None:
        self._take_in()
        if self._stale and self._built:
            self._build(self._first)
            self._stale = False

    def _take_in(self) -> None:
        """What has been added, as far as that needs no training."""
        before, self._built = self._built, self.num_items
        if self._built != before:
            self.__dict__.pop("_products", None)  # of fewer items
        if self._built != before and not (self._stale and self._changes is None):
            # Copied, since rows may be replaced in place before another searcher gets them.
            added = self._rows[before:].copy()
            self._renew(Upsert(np.full(len(added), -1), added))

    def _renew(self, change: Change) -> None:
        """Bring the searcher up to date with what becomes of the items, or leave it stale."""
        self.__dict__.pop("_products", None)  # of other items
        if self._changes is not None:
            self._changes.append(change)
        fresh, self._stale = not self._stale, True  # an error may leave a part of it done
        self._stale = not (fresh and self._update(change))

    def _rebalance(self) -> None:  # noqa: B027, as `write_searcher`
        """Of `rebalance`, in a thread of its own. Most kinds have trained nothing."""

    def _check_any_items(self) -> None:
        if not self._built:
            raise ArgumentError("an index without items cannot be served: all have been removed")

    def _check_dimensions(self, rows: np.ndarray, name: str) -> None:
        if rows.shape[1] != self.dimensions:
            raise ArgumentError(
                f"{name} must have the index's {self.dimensions} dimensions. "
                f"Received: {name} of shape {rows.shape}"
            )

    def _among(self, allowed: npt.ArrayLike) -> npt.NDArray[np.int64] | None:
        """The numbers of the rows that may be found, ascending; None: all."""
        mask = as_array("allowed", allowed)
        if mask.dtype != bool:
            rows = np.unique(self._items.rows_of(allowed, "allowed", self._built))
        elif mask.shape == (self._built,):
            rows = np.flatnonzero(mask)
        else:
            raise ArgumentError(
                f"allowed must be ids of items, or a mask with one bool for each of the "
                f"{self._built} items. Received: allowed of shape {mask.shape} and dtype bool"
            )
        return None if len(rows) == self._built else rows

    @functools.cached_property
    def _products(self) -> ExactProducts:
        return ExactProducts(self._rows, self._metric)

    def _exactly(
        self,
        queries: npt.NDArray[np.float32],
        k: int,
        among: npt.NDArray[np.int64] | None = None,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Row numbers and scores, each `[q, k]`, by products with all rows or those of `among`."""
        rows = np.empty((len(queries), k), np.int64)
        scores = np.empty((len(queries), k), np.float32)
        if not rows.size:
            return rows, scores
        step = self._products.block
        for start in range(0, len(queries), step):
            block = slice(start, start + step)
            nearest, wider = self._products.candidates(queries[block], k, among)
            rows[block], scores[block] = self._ranked(queries[block], nearest, k)
            for query, candidates in wider:
                own = slice(start + query, start + query + 1)
                rows[own], scores[own] = self._ranked(queries[own], candidates[None], k)
        return rows, scores

    @abc.abstractmethod
    def _build(self, first: bool) -> None:
        """Makes ready to search all of `_rows`; `first`: for the first time."""

    def _update(self, change: Change) -> bool:
        """Brings what `_build` made up to date, before the items are; False: it must be built anew.

        Most kinds train nothing, so that building anew is as good.
        """
        return False

    @property
    @abc.abstractmethod
    def _block(self) -> int:
        """Queries searched at once."""

    @abc.abstractmethod
    def _nearest(self, queries: npt.NDArray[np.float32], k: int) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers and scores, each `[q, k]`, for one block of prepared queries."""

    def _ranked(
        self, queries: npt.NDArray[np.float32], candidates: np.ndarray, k: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """The k best of each query's candidates by (score, row).

        Args:
            queries: prepared rows float32 `[q, d]`.
            candidates: row numbers `[q, c]`, c at least k, in any order.

        Returns:
            `(rows, scores)`, each `[q, k]`, nearest first.
        """
        candidates = candidates.astype(np.int64, copy=False)
        scores = np.empty(candidates.shape, np.float32)
        width = max(1, _PAIR_BLOCK // self.dimensions)
        step = max(1, width // candidates.shape[1])
        for start in range(0, len(queries), step):
            for column in range(0, candidates.shape[1], width):
                block = slice(start, start + step), slice(column, column + width)
                scores[block] = self._scores(queries[block[0]], self._rows[candidates[block]])
        order = np.lexsort((candidates, -self._nearness(scores)), axis=1)[:, :k]
        return np.take_along_axis(candidates, order, 1), np.take_along_axis(scores, order, 1)

    def _nearness(self, scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return scores if self._metric == "cosine" else -scores

    def _scores(
        self, queries: npt.NDArray[np.float32], items: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float64]:
        """Scores `[q, c]` of queries `[q, d]` with items `[q, c, d]`."""
        # Products of two float32 are exact in float64 and their sum is good to about 1e-16, so
        # the rounding to float32 gives equal pairs equal scores whatever order the sum is taken
        # in. Distances come from differences: |x|² - 2x·y + |y|² would lose the small ones.
        exact = items.astype(np.float64)
        if self._metric == "cosine":
            return np.einsum("qd,qcd->qc", queries.astype(np.float64), exact)
        exact -= queries[:, None]
        return np.sqrt(np.einsum("qcd,qcd->qc", exact, exact))


def _check_k(k: object, count: int) -> None:
    if not count:
        raise ArgumentError(f"an index without items finds nothing. Received: k={shown(k)}")
    whole = isinstance(k, numbers.Integral) and not isinstance(k, bool)
    if not whole or not 1 <= k <= count:  # type: ignore[operator]
        raise ArgumentError(
            f"k must be a whole number from 1 to the number of items, {count}. "
            f"Received: k={shown(k)}"
        )


def _complete(future: concurrent.futures.Future[None], work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(None)
