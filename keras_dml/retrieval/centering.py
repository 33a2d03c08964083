"""The centering of the items and queries that ScaNN receives."""

from __future__ import annotations

import dataclasses

import numpy as np

from keras_dml._common.rows import center, centered, row_blocks
from keras_dml._common.types import Float32Array, Float64Array, Metric

# Largest squared length of the mean of unit rows that is not subtracted. Recall of codes for noise
# in 32 dimensions, with all leaves searched: 0.999 at 0.5, 0.997 at 0.7, 0.985 at 0.8, 0.77 at 0.96
# and 0.35 at 0.998. With the mean subtracted: 0.9995 at each.
_LONG_MEAN = 0.6
# Fraction of the items' variance that the lift coordinate gets. With less, the principal components
# drop it. With more, the leaves follow it instead of the directions.
_LIFT_SHARE = 0.02


@dataclasses.dataclass(frozen=True)
class CenteringTransform:
    """A centering of rows that keeps the order of every query's items.

    Codes of 4 bits have equal errors along the mean c and across it, and queries have a large
    component along c. If rows differ little, this error hides the difference. For "l2", rows and
    queries become x - c and q - c. For "cosine" without a lift, rows are unchanged. With a lift a,
    items become [x - c, a c·(x - c)] and queries become [q - c, 1 / a], whose product is q·x - q·c.
    The product is correct for rows of any length, including zeros. But rows of zeros would be far
    from all other rows, so codes and leaves are trained with zeros at the mean.

    Args:
        center: c, float64 `[d]`.
        lift: a, or None.
    """

    center: Float64Array
    lift: float | None = None

    @classmethod
    def chosen(cls, rows: Float32Array, metric: Metric) -> CenteringTransform:
        """Choose the centering of prepared rows: a lift if "cosine" has a long mean."""
        if metric != "cosine":
            return cls(center(rows, metric))
        middle = _mean_direction(rows)
        if middle @ middle <= _LONG_MEAN:
            return cls(center(rows, metric))
        parts, squares = [], 0.0
        for block in row_blocks(rows):
            moved = (rows[block] - middle)[rows[block].any(axis=1)]
            parts.append(moved @ middle)
            squares += np.einsum("nd,nd->", moved, moved)
        along = np.concatenate(parts)
        variance = squares / len(along)
        # c·(x - c) is a constant minus |x - c|² / 2. The bound keeps a finite if it hardly varies.
        spread = max(along.std(), 1e-3 * variance)
        return cls(middle, float(np.sqrt(_LIFT_SHARE * variance) / spread) if variance else 1.0)

    @property
    def moves(self) -> bool:
        """Whether the transform changes rows."""
        return bool(self.center.any())

    def trained_on(self, rows: Float32Array) -> Float32Array:
        """Return the rows for the training of leaves and codes: `items`, with zeros at the mean.

        Without re-scoring, a search then treats zeros as items of mean similarity.
        """
        items = self.items(rows)
        if self.lift is not None:
            items[~rows.any(axis=1)] = 0
        return items

    def items(self, rows: Float32Array) -> Float32Array:
        """Transform prepared rows `[n, d]`, float32. Returns `rows` unchanged without a center."""
        if self.lift is None:
            return centered(rows, self.center)
        out = np.empty((len(rows), rows.shape[1] + 1), np.float32)
        for block in row_blocks(rows):
            moved = rows[block] - self.center
            out[block, :-1] = moved
            out[block, -1] = self.lift * (moved @ self.center)
        return out

    def queries(self, queries: Float32Array) -> Float32Array:
        """Transform prepared queries `[q, d]`, float32."""
        moved = centered(queries, self.center)
        if self.lift is None:
            return moved
        return np.pad(moved, ((0, 0), (0, 1)), constant_values=1 / self.lift)


def _mean_direction(rows: Float32Array) -> Float64Array:
    """Compute the mean of the rows that are not zeros, float64 `[d]`."""
    count = sum(int(rows[block].any(axis=1).sum()) for block in row_blocks(rows))
    return rows.sum(axis=0, dtype=np.float64) / max(1, count)
