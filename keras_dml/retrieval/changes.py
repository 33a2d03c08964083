"""Changes of an index's rows, in order, so that they can be repeated on another searcher."""

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt


class Removal(NamedTuple):
    """Removal of rows as in `items.places_after`. `rows` are their numbers, descending."""

    rows: npt.NDArray[np.int64]

    def count_after(self, count: int) -> int:
        """Return the number of rows after the change, from `count` before it."""
        return count - len(self.rows)


class Upsert(NamedTuple):
    """Replacement of rows, and addition of new rows at the end.

    `places` are the numbers of the replaced rows, int64 `[n]`, with -1 for each new row. `rows` are
    the new values, prepared float32 `[n, d]`.
    """

    places: npt.NDArray[np.int64]
    rows: npt.NDArray[np.float32]

    def count_after(self, count: int) -> int:
        """Return the number of rows after the change, from `count` before it."""
        return count + int((self.places < 0).sum())


Change: TypeAlias = Removal | Upsert
