"""Scores of pairs of rows in float64, rounded to float32, so that equal pairs have equal scores."""

import math
from collections.abc import Iterator

import numpy as np

from keras_dml._common.blocks import slices
from keras_dml._common.errors import ArgumentError
from keras_dml._common.types import Float32Array, Float64Array, Int64Array, Metric

# Rows and columns of a block of scores: 4 MiB, which stay in the cache.
_BLOCK = 1024
# Adding and subtracting this number rounds a similarity to multiples of 2⁻⁴⁰. A similarity that
# differs from 0 only by the order of summation becomes 0.
_GRID = 1.5 * 2.0**12
# Squared distances below this fraction of the vectors' squared lengths are computed from
# differences, because the product formula would leave fewer digits than a float32 has.
_CLOSE = 2.0**-20
# Number of differences to compute at once: 2^21 numbers are 16 MiB.
_AT_ONCE = 2**21


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
    from keras_dml._common.progress import long_work_bar  # imports tqdm

    with long_work_bar(description, rows) as bar:
        for block in slices(rows, _BLOCK):
            for others in slices(columns, _BLOCK):
                if not own_rows or others.start >= block.start:
                    yield block, others
            bar.update(block.stop - block.start)


class PairScores:
    """Nearness of pairs (greater is nearer): the cosine similarity, or minus the distance.

    Each score is computed from its two rows in float64 and rounded to float32. Pairs of equal rows
    are therefore ties at any position, which float32 matrix products do not guarantee.

    Args:
        rows: Finite float32 `[n, d]`.
        items: Finite float32 `[m, d]`, the other side of each pair. None uses the rows.
        metric: "cosine" or "l2".

    Raises:
        ValueError: Distances exceed the range of float32.
    """

    def __init__(
        self, rows: Float32Array, metric: Metric, items: Float32Array | None = None
    ) -> None:
        self.metric = metric
        self._rows = rows
        self._items = rows if items is None else items
        if metric == "cosine":
            self.farthest = 2.0
            self._left = _directions(rows)
            self._right = self._left if items is None else _directions(self._items)
            return
        from keras_dml.retrieval.products import first_equal

        both = rows if items is None else np.concatenate([rows, items])
        names = first_equal(both)
        self._row_names, self._item_names = names[: len(rows)], names[-len(self._items) :]
        center = self._items.mean(axis=0, dtype=np.float64)
        self._left = rows - center
        self._right = self._left if items is None else self._items - center
        self._row_squares = np.einsum("nd,nd->n", self._left, self._left)
        self._item_squares = np.einsum("nd,nd->n", self._right, self._right)
        longest = [math.sqrt(squares.max()) for squares in (self._row_squares, self._item_squares)]
        # The distances are rounded too.
        self.farthest = sum(longest) * (1 + 2.0**-20)
        if self.farthest > float(np.finfo(np.float32).max):
            raise ArgumentError(
                "embeddings must have distances within the range of float32 for metric='l2', but "
                f"got embeddings {max(longest):.3g} from their mean."
            )

    def block(self, rows: slice, items: slice) -> Float32Array:
        """Return the scores of a slice of rows against a slice of items, float32 `[b, c]`."""
        products = self._left[rows] @ self._right[items].T
        if self.metric == "cosine":
            return _on_grid(products).astype(np.float32)
        return self._distances(products, rows, items).astype(np.float32)

    def _distances(self, squares: Float64Array, rows: slice, items: slice) -> Float64Array:
        """Convert products to minus the distances, in place."""
        of_rows, of_items = self._row_squares[rows, None], self._item_squares[items]
        squares *= -2
        squares += of_rows
        squares += of_items
        # This selects too many pairs if some embeddings are far longer than others.
        first, second = np.nonzero(squares <= _CLOSE * (of_rows.max() + of_items.max()))
        if len(first):
            close = squares[first, second] <= _CLOSE * (of_rows[first, 0] + of_items[second])
            first, second = first[close], second[close]
            squares[first, second] = 0
            # Without equal rows, which may be many: all, if a network gives one embedding.
            unequal = self._row_names[rows][first] != self._item_names[items][second]
            first, second = first[unequal], second[unequal]
            found = self._differences(first + rows.start, second + items.start)
            squares[first, second] = found
        np.sqrt(squares, out=squares)
        return np.negative(squares, out=squares)

    def _differences(self, rows: Int64Array, items: Int64Array) -> Float64Array:
        """Compute the squared distances of these pairs with all digits."""
        squares = np.empty(len(rows))
        for some in slices(len(rows), _AT_ONCE // self._rows.shape[1]):
            difference = self._rows[rows[some]].astype(np.float64) - self._items[items[some]]
            squares[some] = np.einsum("nd,nd->n", difference, difference)
        return squares


def _directions(rows: Float32Array) -> Float64Array:
    """Scale the rows to length 1. Rows of zeros stay zero."""
    directions = rows.astype(np.float64)
    lengths = np.sqrt(np.einsum("nd,nd->n", directions, directions))
    lengths[lengths == 0] = 1
    directions /= lengths[:, None]
    return directions


def _on_grid(similarities: Float64Array) -> Float64Array:
    similarities += _GRID
    similarities -= _GRID
    return similarities
