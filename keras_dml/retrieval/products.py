"""The nearest rows by blocks of products."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from keras_dml._common.blocks import slices
from keras_dml._common.rows import BLOCK, center, row_blocks
from keras_dml._common.types import BoolArray, Float32Array, Float64Array, Int64Array, Metric

# Candidates beyond k: few queries have more items that are as near as the k-th within rounding.
_SPARE = 8
# Lengths between which float32 holds the squares of distances with all digits.
_SHORTEST, _LONGEST = 1e-12, 1e15
# Scores in memory at once: 2^25 float32 are 128 MiB. Smaller blocks make the products slower.
_SCORE_BLOCK = 2**25


def first_equal(rows: Float32Array) -> Int64Array:
    """Return for each row the number of the first equal row, int64 `[n]`. -0 equals 0."""
    factors = np.random.default_rng(0).integers(2**63, size=rows.shape[1], dtype=np.uint64)
    hashes = np.empty(len(rows), np.uint64)
    for block in row_blocks(rows):
        bits = (rows[block] + np.float32(0)).view(np.uint32).astype(np.uint64)
        hashes[block] = np.einsum("nd,d->n", bits, factors)  # modulo 2^64
    # Few rows that differ have equal hashes, so few whole rows have to be sorted.
    _, inverse, times = np.unique(hashes, return_inverse=True, return_counts=True)
    maybe = np.flatnonzero(times[inverse] > 1)
    first = np.arange(len(rows))
    if len(maybe):
        whole = rows[maybe] + np.float32(0)
        texts = whole.view(np.dtype((np.void, whole.itemsize * whole.shape[1]))).ravel()
        _, start, inverse = np.unique(texts, return_index=True, return_inverse=True)
        first[maybe] = maybe[start][inverse]
    return first


class ExactProducts:
    """Candidates for the nearest of prepared rows, by float32 products with all rows.

    `|x|² - 2x·y + |y|²` loses the digits of distances that are short relative to the lengths of x
    and y. Items whose products differ by less than the rounding error therefore all stay
    candidates. Lengths whose squares float32 cannot hold get float64 products.

    Args:
        rows: float32 `[n, d]`, normalized for "cosine".
        metric: "cosine" or "l2".

    Attributes:
        center: Vector to subtract from rows and queries before products, float64 `[d]`.
    """

    def __init__(self, rows: Float32Array, metric: Metric) -> None:
        self._rows = rows
        self._metric: Metric = metric
        # Equal rows share one product, and therefore one score for any rounding of the product.
        first = first_equal(rows)
        self._distinct = np.flatnonzero(first == np.arange(len(rows)))
        self._copies: np.ndarray | None = None
        if len(self._distinct) < len(rows):
            self._copies = np.searchsorted(self._distinct, first)
        self.center = center(rows, metric)
        self._longest = max(
            (_lengths(rows[block] - self.center).max() for block in row_blocks(rows)), default=0.0
        )
        in_range = metric == "cosine" or _SHORTEST < self._longest < _LONGEST
        self._dtype = np.float32 if in_range else np.float64
        self.block = max(1, min(_SCORE_BLOCK // len(rows), BLOCK // rows.shape[1]))

    def candidates(
        self, queries: Float32Array, k: int, among: Int64Array | None = None
    ) -> tuple[Int64Array, Iterator[tuple[int, Int64Array]]]:
        """Return rows that include the k nearest of each query.

        Args:
            queries: Prepared rows float32 `[q, d]`, q at most `block`.
            k: At most the number of rows to choose from.
            among: None (all rows), or the row numbers to choose from, ascending.

        Returns:
            `(rows, wider)`: k rows or a few more `[q, c]`, and for each query with further
            candidates its number and all its candidates.
        """
        nearness, copies, lengths, dtype = self._products(queries, among)
        count = nearness.shape[1] if copies is None else len(copies)
        asked = min(k + _SPARE, count)
        found, values = largest(nearness if copies is None else nearness[:, copies], asked)
        limits = self._limits(lengths, values[:, k - 1], dtype)
        unsure = np.flatnonzero((values[:, -1] >= limits) & (asked < count))

        def wider() -> Iterator[tuple[int, Int64Array]]:
            first_rows = None if copies is None else _FirstRows(copies, k)
            for query in unsure.tolist():
                some = np.flatnonzero(nearness[query] >= limits[query])
                some = some if first_rows is None else first_rows.of(some)
                yield query, some if among is None else among[some]

        return found if among is None else among[found], wider()

    def are_clear(self, queries: Float32Array, kth: Float32Array, last: Float32Array) -> BoolArray:
        """Return whether all items beyond the last candidate are farther than the k-th, bool `[q]`.

        Args:
            queries: Prepared rows float32 `[q, d]`.
            kth: The exact nearness of the k-th item, `[q]`.
            last: The nearness of the last candidate by float32 products with `rows` - `center`,
                `[q]`. NaN is not clear.
        """
        lengths = _lengths(queries - self.center)
        in_range = (self._dtype == np.float32) & (lengths < _LONGEST)
        return in_range & (last < self._limits(lengths, kth, np.float32))

    def rank_bounds(
        self, queries: Float32Array, relevant: BoolArray, own: Int64Array | None = None
    ) -> tuple[Int64Array, Int64Array]:
        """Bound the number of items that are nearer than the nearest relevant item, int64 `[q]`.

        Items whose nearness is within rounding error, and ties, count only in the upper bound.

        Args:
            queries: Prepared rows float32 `[q, d]`, q at most `block`.
            relevant: Which items are relevant, at least one for each query, bool `[q, n]`.
            own: Item that each query is, `[q]`, to exclude it. None excludes nothing.
        """
        nearness, copies, lengths, dtype = self._products(queries)
        nearness = nearness if copies is None else nearness[:, copies]
        if own is not None:
            nearness[np.arange(len(own)), own] = -np.inf
        rows, columns = np.nonzero(relevant)
        starts = np.flatnonzero(np.diff(rows, prepend=-1))
        best = np.maximum.reduceat(nearness[rows, columns], starts)
        least, most = (
            self._limits(lengths, best, dtype, sign).astype(np.float32)[:, None] for sign in (1, -1)
        )
        # Row by row, because counting along an axis is slow.
        low = np.array([np.count_nonzero(row) for row in nearness > most], np.int64)
        high = np.array([np.count_nonzero(row) for row in nearness >= least], np.int64)
        return low, high - 1  # without the relevant item

    def _products(
        self, queries: Float32Array, among: Int64Array | None = None
    ) -> tuple[Float32Array, np.ndarray | None, Float64Array, type[np.floating]]:
        """Return the nearness of distinct rows, the distinct row of each row, and more.

        Returns:
            `(nearness, copies, lengths, dtype)`: float32 `[q, u]`; None or the column of each row
            `[n]`; the lengths of the queries minus the center, `[q]`; the dtype of the products.
        """
        distinct, copies = self._distinct, self._copies
        if among is not None:
            distinct = among
            if self._copies is not None:
                used, copies = np.unique(self._copies[among], return_inverse=True)
                distinct = self._distinct[used]
        every = among is None and copies is None
        blocks = slices(len(distinct), BLOCK // self._rows.shape[1])
        items = (self._rows[block if every else distinct[block]] for block in blocks)
        moved = queries.astype(np.float64) - self.center
        lengths = _lengths(moved)
        dtype = self._dtype if lengths.max(initial=0.0) < _LONGEST else np.float64
        nearness = _nearness(moved.astype(dtype), items, self.center, self._metric)
        return nearness, copies, lengths, dtype

    def _limits(
        self, lengths: Float64Array, kth: Float32Array, dtype: type[np.floating], sign: int = 1
    ) -> Float64Array:
        """Return the least nearness of an item that can still be one of the k nearest, `[q]`.

        Args:
            lengths: Lengths of the queries minus the center, `[q]`.
            kth: The k-th largest nearness of each query, `[q]`.
            dtype: Dtype of the products.
            sign: -1 for the largest nearness of an item that can still be farther than the k-th.
        """
        kth = kth.astype(np.float64)
        # A sum of d products has an error of at most d times the rounding unit times the vectors'
        # lengths. The 8 more cover the center and the other sums. The factor 2 below covers both
        # the k-th item and the item.
        unit = (self._rows.shape[1] + 8) * float(np.finfo(dtype).eps) / 2
        if self._metric == "cosine":
            return kth - sign * (2.0**-21 * np.abs(kth) + 4 * unit)
        errors = unit * (lengths + self._longest) ** 2
        # 2⁻²⁰ and 1e-75 cover the rounding of nearness and scores to float32.
        squares = kth**2 + sign * (2.0**-20 * kth**2 + 2 * errors + 1e-75)
        return -np.sqrt(np.maximum(squares, 0.0))


def _lengths(rows: Float64Array) -> Float64Array:
    return np.sqrt(np.einsum("nd,nd->n", rows, rows))


class _FirstRows:
    """The first k of the equal rows, for each distinct row.

    Args:
        copies: The distinct row that each row equals, `[n]`.
        k: Largest number of rows for one distinct row.
    """

    def __init__(self, copies: np.ndarray, k: int) -> None:
        self._order = np.argsort(copies, kind="stable")
        times = np.bincount(copies)
        self._starts = np.cumsum(times) - times
        self._times = np.minimum(times, k)

    def of(self, distinct: Int64Array) -> Int64Array:
        """Return the row numbers of distinct rows, in any order."""
        times = self._times[distinct]
        ends = np.cumsum(times)
        offsets = np.repeat(self._starts[distinct] - (ends - times), times)
        return self._order[offsets + np.arange(len(offsets))]


def _nearness(
    queries: npt.NDArray[np.floating],
    blocks: Iterator[Float32Array],
    middle: Float64Array,
    metric: Metric,
) -> Float32Array:
    """Return similarities or negative distances, float32 `[q, n]`.

    Args:
        queries: Queries minus `middle`, in the dtype of the products.
        blocks: Blocks of the n items.
        middle: Vector to subtract from the items, float64 `[d]`.
        metric: "cosine" or "l2".
    """
    parts = []
    squares = np.einsum("qd,qd->q", queries, queries)[:, None]
    for block in blocks:
        items = block.astype(queries.dtype, copy=False)
        if metric == "l2":
            items = (block - middle).astype(queries.dtype)
        nearness = queries @ items.T
        if metric == "l2":
            nearness *= -2
            nearness += squares
            nearness += np.einsum("nd,nd->n", items, items)
            np.maximum(nearness, 0, out=nearness)
            np.sqrt(nearness, out=nearness)
            np.negative(nearness, out=nearness)
        with np.errstate(over="ignore"):  # beyond the range of float32, all items are equally far
            parts.append(nearness.astype(np.float32, copy=False))
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def largest(nearness: Float32Array, count: int) -> tuple[Int64Array, Float32Array]:
    """Return positions and values of the `count` largest numbers of each row, largest first.

    Equal numbers are in the order of their positions.
    """
    first = np.argpartition(-nearness, count - 1, axis=1)[:, :count]
    least = np.take_along_axis(nearness, first[:, -1:], axis=1)
    # If more numbers equal the last one, the partition chooses any of them.
    tied = np.flatnonzero((nearness >= least).sum(axis=1) > count)
    first[tied] = np.argsort(-nearness[tied], axis=1, kind="stable")[:, :count]
    values = np.take_along_axis(nearness, first, axis=1)
    order = np.lexsort((first, -values), axis=1)
    return np.take_along_axis(first, order, axis=1), np.take_along_axis(values, order, axis=1)
