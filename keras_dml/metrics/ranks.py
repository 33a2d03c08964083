"""The number of items that are nearer to a query than its nearest match, without sorting."""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from keras_dml._common.types import Metric
from keras_dml.metrics.bar import long_work_bar

_Rows = npt.NDArray[np.float32]

# Rows and columns of a block of scores: 4 MiB, which stay in the cache during counting.
_BLOCK = 1024
_ROUNDING = 2.0**-24  # relative rounding error of a float32


def rank_bounds(
    queries: _Rows,
    codes: np.ndarray,
    items: _Rows,
    item_codes: np.ndarray,
    metric: Metric,
    own_rows: bool,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Bound the number of items that are nearer than the nearest item of the query's class.

    With these bounds, R@K does not need the K nearest items for any K: a query is a hit if the
    number is below K. The similarities are float32 products, computed in blocks. An item whose
    similarity is within rounding error of the nearest match counts only in the upper bound. The
    bounds therefore hold for any order of summation, and are nearly always equal. If the items are
    the queries, one block serves both its rows and its columns.

    Args:
        queries: Finite float32 `[n, d]`, normalized for "cosine".
        codes: Class number of each query, `[n]`.
        items: Finite float32 `[m, d]`, normalized for "cosine". The same array as the queries if
            `own_rows`.
        item_codes: Class number of each item, `[m]`.
        metric: "cosine" or "l2".
        own_rows: Whether query i is item i, and is excluded.

    Returns:
        `(low, high)`, int64 `[n]` each. Both are m for a query without an item of its class.
        Equally near items are uncertain and count only in `high`.
    """
    left, right, errors = _factors(queries, items, metric)
    # Sorted by class, so that matches are contiguous.
    order, item_order = (np.argsort(c, kind="stable") for c in (codes, item_codes))
    left, right, errors = left[order], right[item_order], errors[order]
    best = _nearest_match(left, codes[order], right, item_codes[item_order], own_rows)
    # The score of the nearest match has the same rounding error as the other scores.
    above = (best + 2 * errors).astype(np.float32)
    below = (best - 2 * errors).astype(np.float32)
    low, high = _count(left, right, above, below, own_rows)
    high -= 1  # the match itself
    low[best == -np.inf] = high[best == -np.inf] = len(items)
    bounds = np.empty((2, len(order)), np.int64)
    bounds[:, order] = low, high
    return bounds[0], bounds[1]


def pair_blocks(
    description: str, rows: int, columns: int, own_rows: bool
) -> Iterator[tuple[slice, slice]]:
    """Yield the blocks of a matrix of pairs as two slices, with a progress bar for long work.

    Args:
        description: Text of the bar.
        rows, columns: Shape of the matrix.
        own_rows: Whether the matrix is symmetric. Then only blocks on or right of the diagonal are
            yielded.
    """
    with long_work_bar(description, rows) as advance:
        for start in range(0, rows, _BLOCK):
            block = slice(start, min(start + _BLOCK, rows))
            for column in range(start if own_rows else 0, columns, _BLOCK):
                yield block, slice(column, min(column + _BLOCK, columns))
            advance(block.stop - start)


def _factors(
    queries: _Rows, items: _Rows, metric: Metric
) -> tuple[_Rows, _Rows, npt.NDArray[np.float64]]:
    """Return matrices whose product is each pair's nearness, and the maximal error per query.

    For "l2", the nearness is minus half the squared distance, x·y - |x|²/2 - |y|²/2. The vectors
    are centered by their mean, which preserves digits, and scaled to about 1 by a power of two,
    which is exact. Without the scaling, squares of numbers below 1e-22 or above 1e19 would exceed
    the range of float32.
    """
    # A sum of d float32 products has an error of at most d·2⁻²⁴ times the vectors' lengths, in any
    # order. The 8 more cover rounded inputs, thresholds, and the rounding of a score to float32.
    unit = (queries.shape[1] + 8) * _ROUNDING
    if metric == "cosine":
        return queries, items, np.full(len(queries), unit)
    center = items.mean(axis=0, dtype=np.float64)
    largest = max(float(np.abs(rows - center).max()) for rows in (queries, items))
    scale = math.ldexp(1.0, min(-math.frexp(largest)[1], 1000))
    queries, items = (((rows - center) * scale).astype(np.float32) for rows in (queries, items))
    halves = [
        0.5 * np.einsum("nd,nd->n", rows, rows, dtype=np.float64) for rows in (queries, items)
    ]
    ones = [np.ones(len(half)) for half in halves]
    left = np.column_stack([queries, ones[0], -halves[0]]).astype(np.float32)
    right = np.column_stack([items, -halves[1], ones[1]]).astype(np.float32)
    # (|x| + |y|)² / 2, for the longest y.
    return left, right, unit * (np.sqrt(halves[0]) + np.sqrt(halves[1].max())) ** 2


def _nearest_match(
    left: _Rows, codes: np.ndarray, right: _Rows, item_codes: np.ndarray, own_rows: bool
) -> npt.NDArray[np.float64]:
    """Return the nearness of the nearest item of the same class, float64 `[n]`, or -inf."""
    best = np.full(len(left), -np.inf)
    for start in range(0, len(left), _BLOCK):
        rows = slice(start, start + _BLOCK)
        own = codes[rows]
        first = np.searchsorted(item_codes, own[0], "left")
        last = np.searchsorted(item_codes, own[-1], "right")
        for column in range(first, last, _BLOCK):
            columns = slice(column, min(column + _BLOCK, last))
            nearness = left[rows] @ right[columns].T
            nearness[own[:, None] != item_codes[columns]] = -np.inf
            if own_rows:
                _leave_out_own(nearness, start, column)
            np.maximum(best[rows], nearness.max(axis=1), out=best[rows])
    return best


def _leave_out_own(nearness: np.ndarray, row: int, column: int) -> None:
    """Set the entries of a block where row and column are the same item to -inf."""
    rows = np.arange(len(nearness))
    own = row + rows - column
    inside = (own >= 0) & (own < nearness.shape[1])
    nearness[rows[inside], own[inside]] = -np.inf


def _count(
    left: _Rows, right: _Rows, above: np.ndarray, below: np.ndarray, own_rows: bool
) -> npt.NDArray[np.int64]:
    """Count the items with nearness > `above` and >= `below`, int64 `[2, n]`."""
    counts = np.zeros((2, len(left)), np.int64)
    for rows, columns in pair_blocks("counting nearer items", len(left), len(right), own_rows):
        nearness = left[rows] @ right[columns].T
        if own_rows and columns == rows:
            np.fill_diagonal(nearness, -np.inf)
        counts[0, rows] += _sum(nearness > above[rows, None], axis=1)
        counts[1, rows] += _sum(nearness >= below[rows, None], axis=1)
        if own_rows and columns != rows:
            counts[0, columns] += _sum(nearness > above[columns], axis=0)
            counts[1, columns] += _sum(nearness >= below[columns], axis=0)
    return counts


def _sum(mask: np.ndarray, axis: int) -> np.ndarray:
    # Ten times as fast as np.count_nonzero along an axis. A block has at most 1,024 rows.
    return mask.sum(axis, dtype=np.uint16)
