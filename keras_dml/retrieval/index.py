"""The interface of every index: rows of a gallery, searched by queries."""

import abc

import numpy as np

METRICS = ("cosine", "l2")

# Numbers held at once while candidates are scored again: 2^22 float64 are 32 MiB.
_PAIR_BLOCK = 2**22
_NAMED_ROWS = 5


def finite_rows(array, name):
    """`array` as float32 rows of finite numbers.

    Args:
        array: numbers `[n, d]`, d at least 1.
        name: what the caller's argument is called, for the messages.

    Returns:
        A new C-contiguous float32 array `[n, d]`.

    Raises:
        ValueError: not numbers, not of rank 2, no columns, NaN or infinity (counted, and the
            first rows named).
    """
    try:
        # A float64 beyond float32's range becomes infinite here and is reported below.
        with np.errstate(over="ignore"):
            rows = np.asarray(array).astype(np.float32, order="C")
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be an array of numbers. {error}") from error
    if np.ndim(array) != 2 or rows.shape[1] < 1:
        raise ValueError(
            f"{name} must have shape [n, d] with d at least 1. "
            f"Received: {name} of shape {np.shape(array)}"
        )
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        first = ", ".join(map(str, bad[:_NAMED_ROWS]))
        rest = ", …" if len(bad) > _NAMED_ROWS else ""
        raise ValueError(
            f"{name} must be finite. Received: NaN or infinity in {len(bad)} of {len(rows)} rows "
            f"(row numbers {first}{rest})"
        )
    return rows


def normalised(rows):
    """Rows of length 1, float32 `[n, d]`; a row of zeros stays zero."""
    lengths = np.sqrt(np.einsum("nd,nd->n", rows, rows, dtype=np.float64))
    lengths[lengths == 0] = 1
    return np.divide(rows, lengths[:, None], dtype=np.float64).astype(np.float32)


class Index(abc.ABC):
    """Items as rows of embeddings, searched for the nearest to each query.

    A score belongs to a pair of vectors alone: it is computed in float64 from their float32
    values (normalised ones for "cosine") and rounded to float32. Equal scores are ordered by
    the lower row number. So every index gives the same rows and scores for the same items.

    Args:
        embeddings: numbers `[n, d]`, n and d at least 1; kept as float32.
        metric: "cosine" (similarity, higher is nearer; a vector of zeros has similarity 0 to
            everything) or "l2" (Euclidean distance, lower is nearer).

    Raises:
        ValueError: unknown metric, no items, wrong rank, NaN or infinity.
    """

    def __init__(self, embeddings, metric="cosine"):
        if metric not in METRICS:
            raise ValueError(f"metric must be one of {METRICS}. Received: metric={metric!r}")
        self._metric = metric
        self._rows = self._prepared(finite_rows(embeddings, "embeddings"))
        if not self.num_items:
            raise ValueError(
                "embeddings must hold at least one row. "
                f"Received: embeddings of shape {self._rows.shape}"
            )

    @property
    def num_items(self):
        """Number of rows that can be found."""
        return self._rows.shape[0]

    @property
    def dimensions(self):
        """Length of an embedding."""
        return self._rows.shape[1]

    @property
    def metric(self):
        """ "cosine" or "l2"."""
        return self._metric

    def search(self, queries, k):
        """The k nearest items of each query, nearest first.

        Args:
            queries: finite numbers `[q, dimensions]`; q may be 0.
            k: from 1 to `num_items`.

        Returns:
            `(rows, scores)`: row numbers int64 `[q, k]`, and similarities ("cosine") or
            distances ("l2") float32 `[q, k]`.

        Raises:
            ValueError: k out of range, wrong rank, other dimensions, NaN or infinity.
        """
        if not 1 <= k <= self.num_items:
            raise ValueError(
                f"k must be from 1 to the number of items, {self.num_items}. Received: k={k}"
            )
        queries = finite_rows(queries, "queries")
        if queries.shape[1] != self.dimensions:
            raise ValueError(
                f"queries must have the index's {self.dimensions} dimensions. "
                f"Received: queries of shape {queries.shape}"
            )
        queries = self._prepared(queries)
        found = [
            self._nearest(queries[start : start + self._block], k)
            for start in range(0, len(queries), self._block)
        ]
        if not found:
            return np.empty((0, k), np.int64), np.empty((0, k), np.float32)
        return tuple(np.concatenate(parts) for parts in zip(*found))

    @property
    @abc.abstractmethod
    def _block(self):
        """Queries searched at once."""

    @abc.abstractmethod
    def _nearest(self, queries, k):
        """What `search` returns, for one block of prepared queries."""

    def _prepared(self, rows):
        return normalised(rows) if self._metric == "cosine" else rows

    def _ranked(self, queries, candidates, k):
        """The k best of each query's candidates by (score, row).

        Args:
            queries: prepared rows float32 `[q, d]`.
            candidates: row numbers `[q, c]`, c at least k, in any order.

        Returns:
            `(rows, scores)` as from `search`.
        """
        candidates = candidates.astype(np.int64, copy=False)
        scores = np.empty(candidates.shape, np.float32)
        step = max(1, _PAIR_BLOCK // (candidates.shape[1] * self.dimensions))
        for start in range(0, len(queries), step):
            block = slice(start, start + step)
            scores[block] = self._scores(queries[block], self._rows[candidates[block]])
        nearness = scores if self._metric == "cosine" else -scores
        order = np.lexsort((candidates, -nearness), axis=1)[:, :k]
        return np.take_along_axis(candidates, order, 1), np.take_along_axis(scores, order, 1)

    def _scores(self, queries, items):
        """Scores `[q, c]` of queries `[q, d]` with items `[q, c, d]`."""
        # Products of two float32 are exact in float64 and their sum is good to about 1e-16, so
        # the rounding to float32 gives equal pairs equal scores whatever order the sum is taken
        # in. Distances come from differences: |x|² - 2x·y + |y|² would lose the small ones.
        items = items.astype(np.float64)
        if self._metric == "cosine":
            return np.einsum("qd,qcd->qc", queries.astype(np.float64), items)
        items -= queries[:, None]
        return np.sqrt(np.einsum("qcd,qcd->qc", items, items))
