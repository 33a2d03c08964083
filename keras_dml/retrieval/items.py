"""The items of an index: rows and their ids, which grow by blocks."""

import numbers
import threading
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from keras_dml.checks import as_array, shown
from keras_dml.errors import ArgumentError
from keras_dml.retrieval.rows import first_few

# The file of a saved index that holds its items.
EMBEDDINGS = "embeddings.npy"


def _refused(ids: npt.ArrayLike, why: object) -> ArgumentError:
    return ArgumentError(
        "ids must be whole numbers (int64) or strings, one for each row of embeddings, no two "
        f"the same. Received: {why} (ids={shown(ids)})"
    )


def _check_unique(ids: npt.ArrayLike, doubles: np.ndarray) -> None:
    if len(doubles):
        raise _refused(ids, f"{len(doubles)} of them more than once, {first_few(doubles)}")


def checked_ids(ids: npt.ArrayLike, count: int) -> np.ndarray:
    """`ids` as an array `[count]`, int64 or of strings ("U").

    Raises:
        ValueError: another length or type, or duplicates (counted, and the first ones named).
    """
    try:
        array = np.asarray(ids)
    except ValueError as error:
        raise _refused(ids, error) from error
    if array.shape != (count,):
        raise _refused(ids, f"shape {array.shape} beside {count} rows")
    kind = array.dtype.kind
    # NumPy makes strings of the numbers in a list of both.
    if (kind in "TU" and isinstance(ids, np.ndarray)) or (
        kind in "OU" and isinstance(ids, Iterable) and all(isinstance(one, str) for one in ids)
    ):
        array = array.astype(str)
    elif kind not in "iu" or (count and array.max() > np.iinfo(np.int64).max):
        raise _refused(ids, f"dtype {array.dtype}" if kind != "u" else "numbers beyond int64")
    else:
        array = array.astype(np.int64)
    found, times = np.unique(array, return_counts=True)
    _check_unique(ids, found[times > 1])
    return array


class Items:
    """Rows `[n, d]` and their ids `[n]`; what is added is joined when it is next read.

    May be read and added to by several threads at once: a row number names the same row and the
    same id for ever, and no reader sees a row without its id.

    Args:
        rows: prepared float32 `[n, d]`.
        ids: None (the row numbers), or as `checked_ids` takes them.
    """

    def __init__(self, rows: npt.NDArray[np.float32], ids: npt.ArrayLike | None = None) -> None:
        self._rows = [rows]
        self._ids = None if ids is None else [checked_ids(ids, len(rows))]
        self._row_of: dict[int | str, int] = {}  # of the first so many, as far as it was needed
        self._lock = threading.RLock()
        self.dimensions: int = rows.shape[1]

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._rows))

    @property
    def rows(self) -> npt.NDArray[np.float32]:
        """float32 `[n, d]`."""
        with self._lock:
            if len(self._rows) > 1:
                self._rows = [np.concatenate(self._rows)]
            return self._rows[0]

    @property
    def has_ids(self) -> bool:
        """Whether the ids are others than the row numbers."""
        return self._ids is not None

    @property
    def ids(self) -> np.ndarray:
        """int64 or strings `[n]`."""
        with self._lock:
            if self._ids is None:
                return np.arange(len(self))
            if len(self._ids) > 1:
                self._ids = [np.concatenate(self._ids)]
            return self._ids[0]

    def ids_of(self, rows: npt.NDArray[np.int64]) -> np.ndarray:
        """The ids of row numbers of any shape."""
        return rows if self._ids is None else self.ids[rows]

    def rows_of(self, ids: npt.ArrayLike, name: str, count: int) -> npt.NDArray[np.int64]:
        """The numbers of the rows of these ids, in their order, among the first `count` rows.

        Raises:
            ValueError: no whole numbers or strings, or ids that no row has (counted, and the first
                ones named); `name` is what the caller's argument is called.
        """
        asked = as_array(name, ids)
        if asked.shape == (0,):
            return np.empty(0, np.int64)
        wanted = f"{name} must be ids of items, {'strings' if self._are_text else 'whole numbers'}"
        # NumPy makes strings of the numbers in a list of both.
        each = ids if isinstance(ids, list | tuple) else asked.flat
        kind = str if self._are_text else numbers.Integral
        if asked.ndim != 1 or not all(
            isinstance(one, kind) and not isinstance(one, bool) for one in each
        ):
            raise ArgumentError(f"{wanted}. Received: {name}={shown(ids)}")
        with self._lock:
            # What no item has gets a number beyond all rows that count.
            if self._ids is None:
                rows = [one if 0 <= one < count else count for one in asked.tolist()]
            else:
                known = self._known()
                rows = [known.get(one, count) for one in asked.tolist()]
        found = np.array(rows, np.int64)
        unknown = found >= count
        if unknown.any():
            raise ArgumentError(
                f"{wanted}. Received: {int(unknown.sum())} that no item has, "
                f"{first_few(asked[unknown])}"
            )
        return found

    @property
    def _are_text(self) -> bool:
        return self._ids is not None and self._ids[0].dtype.kind == "U"

    def _known(self) -> dict[int | str, int]:
        """The row of each id."""
        ids, done = self.ids, len(self._row_of)
        self._row_of.update(zip(ids[done:].tolist(), range(done, len(ids))))
        return self._row_of

    def first(self, count: int) -> "Items":
        """The first of them, which later additions leave alone."""
        with self._lock:
            return Items(self.rows[:count], self.ids[:count] if self.has_ids else None)

    def add(self, rows: npt.NDArray[np.float32], ids: npt.ArrayLike | None) -> None:
        """Append rows; `ids` None if and only if they were so before."""
        with self._lock:
            self._add(rows, ids)

    def _add(self, rows: npt.NDArray[np.float32], ids: npt.ArrayLike | None) -> None:
        if (ids is None) != (self._ids is None):
            was = "without" if self._ids is None else "with"
            raise ArgumentError(
                f"ids must be given for all items or for none: this index was built {was} ids. "
                f"Received: ids={shown(ids)}"
            )
        if not len(rows):
            return
        if ids is not None and self._ids is not None:
            added = checked_ids(ids, len(rows))
            if added.dtype.kind != self._ids[0].dtype.kind:
                raise _refused(ids, f"dtype {added.dtype} beside {self._ids[0].dtype} before")
            known = self._known()
            _check_unique(ids, np.array([one for one in added.tolist() if one in known]))
            self._ids.append(added)
        self._rows.append(rows)
