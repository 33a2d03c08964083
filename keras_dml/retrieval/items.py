"""The items of an index: rows and ids that can change."""

import numbers
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from keras_dml._common.errors import ArgumentError, argument_error, as_array, shown
from keras_dml._common.rows import first_few
from keras_dml._common.types import Float32Array, Int64Array

# File name of the items in a saved index.
EMBEDDINGS = "embeddings.npy"
# A growing array gets this fraction of spare rows, so that adding one item to a million does not
# copy all of them.
_SPARE_SHARE = 8


def _refused(ids: npt.ArrayLike, why: object) -> ArgumentError:
    return ArgumentError(
        "ids must be different whole numbers (int64) or strings, one for each row of embeddings, "
        f"but got {shown(ids)} ({why})."
    )


def _check_unique(ids: npt.ArrayLike, doubles: np.ndarray) -> None:
    if len(doubles):
        raise _refused(ids, f"{len(doubles)} of them more than once, {first_few(doubles)}")


def checked_ids(ids: npt.ArrayLike, count: int) -> np.ndarray:
    """Convert `ids` to an array `[count]` of int64 or of strings ("U").

    Raises:
        ValueError: The length or type is wrong, or there are duplicates (the message has their
            count and the first ones).
    """
    try:
        array = np.asarray(ids)
    except ValueError as error:
        raise _refused(ids, "lists of different lengths") from error
    if array.shape != (count,):
        raise _refused(ids, f"shape {array.shape} for {count} rows")
    kind = array.dtype.kind
    # NumPy converts the numbers to strings in a list of both.
    each = ids if isinstance(ids, Iterable) else ()
    if kind in "OTU" and all(isinstance(one, str) for one in each):
        # NumPy strings drop trailing null characters, which would change the id.
        if any(str(one).endswith("\0") for one in each):
            raise _refused(ids, "an id that ends in a null character")
        array = array.astype(str)
    elif kind not in "iu" or (count and array.max() > np.iinfo(np.int64).max):
        raise _refused(ids, f"dtype {array.dtype}" if kind != "u" else "numbers beyond int64")
    else:
        array = array.astype(np.int64)
    found, times = np.unique(array, return_counts=True)
    _check_unique(ids, found[times > 1])
    return array


def places_after(count: int, removed: Int64Array) -> Int64Array:
    """Return which row is at each place after the removal of rows, int64 `[count - r]`.

    Each removed row is replaced by the current last row, in order of descending row number. ScaNN
    does the same, and few rows move.

    Args:
        count: Number of rows.
        removed: Row numbers, descending.
    """
    places = np.arange(count)
    last = count
    for row in removed.tolist():
        last -= 1
        places[row] = places[last]
    return places[:last]


class Removal(NamedTuple):
    """Removal of rows as in `places_after`. `rows` are their numbers, descending."""

    rows: Int64Array


class Upsert(NamedTuple):
    """Replacement of rows, and addition of new rows at the end.

    `places` are the numbers of the replaced rows, int64 `[n]`, with -1 for each new row. `rows` are
    the new values, prepared float32 `[n, d]`.
    """

    places: Int64Array
    rows: Float32Array


Change: TypeAlias = Removal | Upsert
"""A change of an index's rows."""


class _Column:
    """An array that grows at its end."""

    def __init__(self, array: np.ndarray) -> None:
        self._space, self._count = array, len(array)

    def __len__(self) -> int:
        return self._count

    @property
    def array(self) -> np.ndarray:
        """The whole array. Later additions do not change it."""
        return self._space[: self._count]

    def append(self, block: np.ndarray) -> None:
        """Append a block."""
        count = self._count + len(block)
        dtype = np.result_type(self._space, block)  # longer strings have another dtype
        if count > len(self._space) or dtype != self._space.dtype:
            space = np.empty((count + count // _SPARE_SHARE, *block.shape[1:]), dtype)
            space[: self._count] = self.array
            self._space = space
        self._space[self._count : count] = block
        self._count = count

    def truncate(self, count: int) -> None:
        """Drop everything after the first `count` entries."""
        self._count = count


class Items:
    """Rows `[n, d]` and their ids `[n]`.

    Replacing and removing rows happens in place. Otherwise, row numbers and ids are stable. One
    thread at a time can use the items, except for their number.

    Args:
        rows: Prepared float32 `[n, d]`.
        ids: None (row numbers), or ids as in `checked_ids`.
    """

    def __init__(self, rows: Float32Array, ids: npt.ArrayLike | None = None) -> None:
        self._rows = _Column(rows)
        self._ids = None if ids is None else _Column(checked_ids(ids, len(rows)))
        # Row of each id, for the first ids, filled on demand.
        self._row_of: dict[int | str, int] = {}
        self.dimensions: int = rows.shape[1]

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> Float32Array:
        """The rows, float32 `[n, d]`."""
        return self._rows.array

    @property
    def has_ids(self) -> bool:
        """Whether the ids differ from the row numbers."""
        return self._ids is not None

    @property
    def ids(self) -> np.ndarray:
        """The ids, int64 or strings `[n]`."""
        return np.arange(len(self)) if self._ids is None else self._ids.array

    def ids_of(self, rows: Int64Array) -> np.ndarray:
        """Return the ids of row numbers of any shape."""
        return rows if self._ids is None else self.ids[rows]

    def add(self, rows: Float32Array, ids: npt.ArrayLike | None) -> None:
        """Append rows.

        Raises:
            ValueError: Only one of the items and `ids` has ids, or ids are invalid or exist.
        """
        if (ids is None) != (self._ids is None):
            without = "None for an index without ids"
            wanted = without if self._ids is None else "set for an index with ids"
            raise argument_error("ids", wanted, ids)
        if not len(rows):
            return
        if ids is not None and self._ids is not None:
            added = checked_ids(ids, len(rows))
            self._check_kind(ids, added)
            known = self._known()
            _check_unique(ids, np.array([one for one in added.tolist() if one in known]))
            self._ids.append(added)
        self._rows.append(rows)

    def rows_of(self, ids: npt.ArrayLike, name: str) -> Int64Array:
        """Return the row numbers of ids, in their order.

        Raises:
            ValueError: The ids are not whole numbers or strings, or are unknown (the message has
                their count and the first ones). `name` is the caller's argument.
        """
        asked = as_array(name, ids)
        if asked.shape == (0,):
            return np.empty(0, np.int64)
        wanted = f"ids of items, {'strings' if self._are_text else 'whole numbers'}"
        # NumPy converts numbers to strings in a list of both, and drops trailing null characters.
        each = ids if isinstance(ids, list | tuple) else asked.ravel().tolist()
        kind = str if self._are_text else numbers.Integral
        if asked.ndim != 1 or not all(
            isinstance(one, kind) and not isinstance(one, bool) for one in each
        ):
            raise argument_error(name, wanted, ids)
        # Unknown ids get a number beyond all rows.
        count = len(self)
        if self._ids is None:
            rows = [one if 0 <= one < count else count for one in each]
        else:
            known = self._known()
            rows = [known.get(one, count) for one in each]
        found = np.array(rows, np.int64)
        unknown = found >= count
        if unknown.any():
            raise ArgumentError(
                f"{name} must be {wanted}, but got {int(unknown.sum())} that no item has: "
                f"{first_few(asked[unknown])}."
            )
        return found

    @property
    def _are_text(self) -> bool:
        return self._ids is not None and self._ids.array.dtype.kind == "U"

    def _known(self) -> dict[int | str, int]:
        """Return the row of each id."""
        ids, done = self.ids, len(self._row_of)
        self._row_of.update(zip(ids[done:].tolist(), range(done, len(ids))))
        return self._row_of

    def rows_or_new(self, ids: npt.ArrayLike, count: int) -> Int64Array:
        """Return the row numbers of ids, int64 `[count]`, with -1 for new ids."""
        array = checked_ids(ids, count)
        self._check_kind(ids, array)
        if self._ids is None:
            return np.where((array >= 0) & (array < len(self)), array, -1)
        known = self._known()
        return np.array([known.get(one, -1) for one in array.tolist()], np.int64)

    def upsert(self, change: Upsert, ids: npt.ArrayLike) -> None:
        """Replace and append rows. `ids` are the ids of all rows of the change.

        Row numbers that served as ids become explicit ids if rows are appended.
        """
        new = change.places < 0
        self.rows[change.places[~new]] = change.rows[~new]
        if new.any():
            self._give_ids()
            self.add(change.rows[new], np.asarray(ids)[new])

    def remove(self, removed: Int64Array) -> None:
        """Remove rows as in `places_after`. Row numbers that served as ids become explicit ids.

        Args:
            removed: Row numbers, descending.
        """
        self._give_ids()
        ids, row_of = self.ids, self._known()
        places = places_after(len(ids), removed)
        moved = np.flatnonzero(places != np.arange(len(places)))
        rows = self.rows
        rows[moved] = rows[places[moved]]
        self._rows.truncate(len(places))
        for one in ids[removed].tolist():
            del row_of[one]
        # A new array, because callers can still use the previous `ids`.
        self._ids = _Column(ids[places])
        row_of.update(zip(ids[places[moved]].tolist(), moved.tolist()))

    def _give_ids(self) -> None:
        if self._ids is None:
            self._ids = _Column(np.arange(len(self)))

    def _check_kind(self, ids: npt.ArrayLike, array: np.ndarray) -> None:
        if array.dtype.kind != self.ids.dtype.kind:
            raise _refused(ids, f"dtype {array.dtype} after {self.ids.dtype}")
