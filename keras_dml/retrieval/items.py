"""The items of an index: rows and their ids, which change."""

import contextlib
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
# Of its rows an array that grows gets so many more than it needs, so that one item added to a
# million does not copy a million.
_SPARE_SHARE = 8


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
        # NumPy's strings lose it: another id would be meant.
        if not (isinstance(ids, np.ndarray) and kind == "U") and any(
            str(one).endswith("\0") for one in ids
        ):
            raise _refused(ids, "an id that ends in a null character")
        array = array.astype(str)
    elif kind not in "iu" or (count and array.max() > np.iinfo(np.int64).max):
        raise _refused(ids, f"dtype {array.dtype}" if kind != "u" else "numbers beyond int64")
    else:
        array = array.astype(np.int64)
    found, times = np.unique(array, return_counts=True)
    _check_unique(ids, found[times > 1])
    return array


def places_after(count: int, removed: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Which row stands where once `removed` are taken out of `count`, int64 `[count - r]`.

    The last row takes the place of each removed one, from the highest of these down: so ScaNN
    does it, and little is moved.

    Args:
        count: number of rows.
        removed: row numbers, descending.
    """
    places = np.arange(count)
    last = count
    for row in removed.tolist():
        last -= 1
        places[row] = places[last]
    return places[:last]


class _Column:
    """An array that grows at its end; what is added is joined when it is next read."""

    def __init__(self, array: np.ndarray) -> None:
        self._space, self._count = array, len(array)
        self._added: list[np.ndarray] = []

    def __len__(self) -> int:
        return self._count + sum(map(len, self._added))

    @property
    def dtype(self) -> np.dtype:
        """Of what was there first."""
        return self._space.dtype

    @property
    def array(self) -> np.ndarray:
        """All of it; later additions leave it alone."""
        if self._added:
            added = np.concatenate(self._added)
            count = self._count + len(added)
            dtype = np.result_type(self._space, added)  # longer strings are another one
            if count > len(self._space) or dtype != self._space.dtype:
                space = np.empty((count + count // _SPARE_SHARE, *added.shape[1:]), dtype)
                space[: self._count] = self._space[: self._count]
                self._space = space
            self._space[self._count : count] = added
            self._count, self._added = count, []
        return self._space[: self._count]

    def append(self, block: np.ndarray) -> None:
        """Add at the end."""
        self._added.append(block)

    def truncate(self, count: int) -> None:
        """Drop what lies behind the first `count`."""
        self._count = len(self.array[:count])


class Items:
    """Rows `[n, d]` and their ids `[n]`; what is added is joined when it is next read.

    May be read and added to by several threads at once: no reader sees a row without its id. Rows
    are replaced and removed in place, which is for one thread while no other reads (see
    `retrieval.turns`); until then a row number names the same row and the same id.

    Args:
        rows: prepared float32 `[n, d]`.
        ids: None (the row numbers), or as `checked_ids` takes them.
    """

    def __init__(self, rows: npt.NDArray[np.float32], ids: npt.ArrayLike | None = None) -> None:
        self._rows = _Column(rows)
        self._ids = None if ids is None else _Column(checked_ids(ids, len(rows)))
        self._row_of: dict[int | str, int] = {}  # of the first so many, as far as it was needed
        self._lock = threading.RLock()
        self._lent = False
        self.dimensions: int = rows.shape[1]

    def __len__(self) -> int:
        with self._lock:
            return len(self._rows)

    @property
    def rows(self) -> npt.NDArray[np.float32]:
        """float32 `[n, d]`."""
        with self._lock:
            return self._rows.array

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
            return self._ids.array

    def ids_of(self, rows: npt.NDArray[np.int64]) -> np.ndarray:
        """The ids of row numbers of any shape."""
        return rows if self._ids is None else self.ids[rows]

    def first(self, count: int) -> "Items":
        """The first of them, which later additions leave alone."""
        with self._lock:
            return Items(self.rows[:count], self.ids[:count] if self.has_ids else None)

    def lent_rows(self) -> npt.NDArray[np.float32]:
        """Rows as they are now, whatever is changed later: the next change in place copies them."""
        with self._lock:
            self._lent = True
            return self.rows

    def add(self, rows: npt.NDArray[np.float32], ids: npt.ArrayLike | None) -> None:
        """Append rows; `ids` None if and only if they were so before."""
        with self._lock:
            self._add(rows, ids)

    def held(self) -> contextlib.AbstractContextManager[object]:
        """Within it no other thread adds or reads."""
        return self._lock

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
        # NumPy makes strings of the numbers in a list of both, and takes null characters off ends.
        each = ids if isinstance(ids, list | tuple) else asked.flat
        kind = str if self._are_text else numbers.Integral
        if asked.ndim != 1 or not all(
            isinstance(one, kind) and not isinstance(one, bool) for one in each
        ):
            raise ArgumentError(f"{wanted}. Received: {name}={shown(ids)}")
        if self._are_text and any(one.endswith("\0") for one in each):
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
        return self._ids is not None and self._ids.dtype.kind == "U"

    def _known(self) -> dict[int | str, int]:
        """The row of each id."""
        ids, done = self.ids, len(self._row_of)
        self._row_of.update(zip(ids[done:].tolist(), range(done, len(ids))))
        return self._row_of

    def rows_or_new(self, ids: npt.ArrayLike, count: int) -> npt.NDArray[np.int64]:
        """The row numbers of ids, -1 for new ones, int64 `[count]`."""
        array = checked_ids(ids, count)
        self._check_kind(ids, array, np.dtype(np.int64) if self._ids is None else self._ids.dtype)
        if self._ids is None:
            return np.where((array >= 0) & (array < len(self)), array, -1)
        known = self._known()
        return np.array([known.get(one, -1) for one in array.tolist()], np.int64)

    def replace(self, places: npt.NDArray[np.int64], rows: npt.NDArray[np.float32]) -> None:
        """Put rows in the place of those of these numbers."""
        self._own_rows()[places] = rows

    def append(self, rows: npt.NDArray[np.float32], ids: np.ndarray) -> None:
        """Append rows of new ids; row numbers that were ids till then become given ones."""
        self._give_ids()
        self._add(rows, ids)

    def remove(self, removed: npt.NDArray[np.int64]) -> None:
        """Take out rows as `places_after` says; row numbers become given ids.

        Args:
            removed: row numbers, descending.
        """
        self._give_ids()
        ids, row_of = self.ids, self._known()
        places = places_after(len(ids), removed)
        moved = np.flatnonzero(places != np.arange(len(places)))
        rows = self._own_rows()
        rows[moved] = rows[places[moved]]
        self._rows.truncate(len(places))
        for one in ids[removed].tolist():
            del row_of[one]
        self._ids = _Column(ids[places])  # anew, since who has asked for `ids` may keep them
        row_of.update(zip(ids[places[moved]].tolist(), moved.tolist()))

    def _own_rows(self) -> npt.NDArray[np.float32]:
        if self._lent:
            self._lent, self._rows = False, _Column(self.rows.copy())
        return self.rows

    def _give_ids(self) -> None:
        if self._ids is None:
            self._ids = _Column(np.arange(len(self)))

    def _check_kind(self, ids: npt.ArrayLike, array: np.ndarray, before: np.dtype) -> None:
        if array.dtype.kind != before.kind:
            raise _refused(ids, f"dtype {array.dtype} beside {before} before")

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
            self._check_kind(ids, added, self._ids.dtype)
            known = self._known()
            _check_unique(ids, np.array([one for one in added.tolist() if one in known]))
            self._ids.append(added)
        self._rows.append(rows)
