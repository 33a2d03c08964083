"""What happens to the rows of an index, in order: enough to do the same to another searcher."""

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt


class Removal(NamedTuple):
    """Rows are taken out as `items.places_after` says; `rows`: their numbers, descending."""

    rows: npt.NDArray[np.int64]

    def count_after(self, count: int) -> int:
        """Number of rows then, of `count` before."""
        return count - len(self.rows)


class Upsert(NamedTuple):
    """Rows are replaced or come behind the others.

    `places`: int64 `[n]`, the numbers of those replaced, -1 for each that is new; `rows`: what
    they are now, prepared float32 `[n, d]`.
    """

    places: npt.NDArray[np.int64]
    rows: npt.NDArray[np.float32]

    def count_after(self, count: int) -> int:
        """Number of rows then, of `count` before."""
        return count + int((self.places < 0).sum())


Change: TypeAlias = Removal | Upsert
