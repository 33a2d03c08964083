"""The scores of pairs of rows in float64, rounded to float32: equal pairs have equal scores."""

import numpy as np
import numpy.typing as npt

from keras_dml.errors import ArgumentError
from keras_dml.nearness import Metric

_Rows = npt.NDArray[np.float32]

# Added and taken off again, it rounds a similarity to multiples of 2⁻⁴⁰: what is 0 but for the
# order in which products are summed is 0.
_GRID = 1.5 * 2.0**12
# Squared distances below this share of the vectors' squares come from differences: the product
# would leave them fewer digits than a float32 has.
_CLOSE = 2.0**-20
# Numbers of differences taken at once: 2^21 are 16 MiB.
_AT_ONCE = 2**21


class PairScores:
    """Nearness of pairs, the greater the nearer: cosine similarity, or minus the distance.

    Each is computed from its two rows in float64 and rounded to float32, so that pairs of the same
    rows are ties wherever they stand, which float32 products do not promise.

    Args:
        rows: finite float32 `[n, d]`.
        items: finite float32 `[m, d]`, the other side of each pair; None: the rows themselves.
        metric: "cosine" or "l2".

    Raises:
        ValueError: distances beyond float32.
    """

    def __init__(self, rows: _Rows, metric: Metric, items: _Rows | None = None) -> None:
        self.metric = metric
        self._rows = rows
        self._items = rows if items is None else items
        self._center = np.zeros(rows.shape[1])
        if metric == "l2":
            self._center = self._items.mean(axis=0, dtype=np.float64)
        self._row_squares = self._squares(self._rows)
        self._item_squares = self._row_squares if items is None else self._squares(self._items)
        self.farthest = 2.0
        if metric == "l2":
            longest = [float(np.sqrt(s.max())) for s in (self._row_squares, self._item_squares)]
            self.farthest = sum(longest)
            if self.farthest > float(np.finfo(np.float32).max):
                raise ArgumentError(
                    "embeddings must lie within float32's range of each other for metric='l2'. "
                    f"Received: embeddings {max(longest):.3g} from their mean"
                )

    def block(self, rows: slice, items: slice) -> _Rows:
        """The scores of every row of a slice with every item of another, float32 `[b, c]`."""
        left = self._prepared(self._rows, self._row_squares, rows)
        right = self._prepared(self._items, self._item_squares, items)
        scores = left @ right.T
        if self.metric == "cosine":
            return _on_grid(scores)
        squares = self._row_squares[rows, None] + self._item_squares[items]
        scores *= -2
        scores += squares
        squares *= _CLOSE
        close = np.flatnonzero(scores <= squares)
        if len(close):
            first, second = np.divmod(close, scores.shape[1])
            flat = scores.ravel()
            flat[close] = self._differences(first + rows.start, second + items.start)
        np.sqrt(scores, out=scores)
        return np.negative(scores, out=scores).astype(np.float32)

    def pairs(self, rows: npt.NDArray[np.int64], items: npt.NDArray[np.int64]) -> _Rows:
        """The scores of row `rows[p]` with item `items[p]`, float32 `[p]`."""
        scores = np.empty(len(rows), np.float32)
        step = max(1, _AT_ONCE // self._rows.shape[1])
        for start in range(0, len(rows), step):
            block = slice(start, start + step)
            if self.metric == "l2":
                found = -np.sqrt(self._differences(rows[block], items[block]))
            else:
                left = self._prepared(self._rows, self._row_squares, rows[block])
                right = self._prepared(self._items, self._item_squares, items[block])
                found = _on_grid(np.einsum("nd,nd->n", left, right))
            scores[block] = found
        return scores

    def _squares(self, rows: _Rows) -> npt.NDArray[np.float64]:
        from keras_dml.retrieval.rows import row_blocks

        squares = np.empty(len(rows))
        for block in row_blocks(rows):
            centered = rows[block] - self._center
            squares[block] = np.einsum("nd,nd->n", centered, centered)
        return squares

    def _prepared(
        self,
        rows: _Rows,
        squares: npt.NDArray[np.float64],
        chosen: slice | npt.NDArray[np.int64],
    ) -> npt.NDArray[np.float64]:
        if self.metric == "l2":
            return rows[chosen] - self._center
        lengths = np.sqrt(squares[chosen])
        lengths[lengths == 0] = 1
        return rows[chosen] / lengths[:, None]

    def _differences(
        self, rows: npt.NDArray[np.int64], items: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Squared distances of these pairs, with all digits."""
        squares = np.empty(len(rows))
        step = max(1, _AT_ONCE // self._rows.shape[1])
        for start in range(0, len(rows), step):
            some = slice(start, start + step)
            difference = self._rows[rows[some]].astype(np.float64) - self._items[items[some]]
            squares[some] = np.einsum("nd,nd->n", difference, difference)
        return squares


def _on_grid(similarities: npt.NDArray[np.float64]) -> _Rows:
    similarities += _GRID
    similarities -= _GRID
    return similarities.astype(np.float32)
