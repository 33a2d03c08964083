"""Where items and queries lie as ScaNN sees them."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from keras_dml.nearness import Metric
from keras_dml.retrieval.rows import center, centered, row_blocks

# The longest squared length of the mean of rows of length 1 that stays. Recall of codes for noise
# in 32 dimensions, all leaves searched: 0.999 at 0.5, 0.997 at 0.7, 0.985 at 0.8, 0.77 at 0.96 and
# 0.35 at 0.998; with the mean taken off 0.9995 at each.
_LONG_MEAN = 0.6
# The share of the items' variance that the coordinate beside them gets. Less, and principal
# components leave it out; more, and leaves follow it instead of the directions.
_LIFT_SHARE = 0.02


@dataclasses.dataclass(frozen=True)
class Frame:
    """Takes the mean off rows, without a change to the order of any query's items.

    Codes of 4 bits are as wrong along the mean c as across it, and a query is long along c: where
    rows differ by little, that error hides the difference. "l2": x - c and q - c. "cosine" leaves
    rows as they are; with a lift a items become [x - c, a c·(x - c)] and queries [q - c, 1 / a],
    whose product is q·x - q·c. That is so for rows of any length, those of zeros too; but these
    would lie far from all others, so that codes and leaves are trained with them at the mean.

    Args:
        center: c, float64 `[d]`.
        lift: a, or None.
    """

    center: npt.NDArray[np.float64]
    lift: float | None = None

    @classmethod
    def chosen(cls, rows: npt.NDArray[np.float32], metric: Metric) -> Frame:
        """The frame for a tree over prepared rows: with a lift if "cosine" has a long mean."""
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
        # c·(x - c) is a constant less |x - c|² / 2. Where that hardly varies, a stays finite.
        spread = max(along.std(), 1e-3 * variance)
        return cls(middle, float(np.sqrt(_LIFT_SHARE * variance) / spread) if variance else 1.0)

    @classmethod
    def saved(
        cls,
        rows: npt.NDArray[np.float32],
        metric: Metric,
        lift: float | None,
        middle: list[float] | None = None,
    ) -> Frame:
        """The frame of its lift and center; without center what `chosen` gave for these rows."""
        if middle is not None:
            found = np.array(middle, np.float64)
            if found.shape != rows.shape[1:]:
                raise ValueError(f"a center of shape {found.shape}")
            return cls(found, lift)
        return cls(center(rows, metric) if lift is None else _mean_direction(rows), lift)

    @property
    def moves(self) -> bool:
        """Whether rows change at all."""
        return bool(self.center.any())

    def trained_on(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """What leaves and codes are trained on: `items`, but zeros at the mean if there is a lift.

        So a search that is not scored again takes them for items of mean similarity.
        """
        items = self.items(rows)
        if self.lift is not None:
            items[~rows.any(axis=1)] = 0
        return items

    def items(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Prepared rows `[n, d]` moved, float32; `rows` themselves if nothing moves."""
        if self.lift is None:
            return centered(rows, self.center)
        out = np.empty((len(rows), rows.shape[1] + 1), np.float32)
        for block in row_blocks(rows):
            moved = rows[block] - self.center
            out[block, :-1] = moved
            out[block, -1] = self.lift * (moved @ self.center)
        return out

    def queries(self, queries: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Prepared queries `[q, d]` moved, float32."""
        moved = centered(queries, self.center)
        if self.lift is None:
            return moved
        return np.pad(moved, ((0, 0), (0, 1)), constant_values=1 / self.lift)


def _mean_direction(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """The mean of the rows that are not zeros, float64 `[d]`."""
    count = sum(int(rows[block].any(axis=1).sum()) for block in row_blocks(rows))
    return rows.sum(axis=0, dtype=np.float64) / max(1, count)
