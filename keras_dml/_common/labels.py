"""Labels as NumPy arrays of integers or strings that can be compared."""

from collections.abc import Iterable
from numbers import Integral, Real

import numpy as np
import numpy.typing as npt

from keras_dml._common.errors import (
    ArgumentError,
    ArgumentTypeError,
    as_array,
    check_exact,
    shown,
)


def plain_labels(name: str, labels: object) -> np.ndarray:
    """Convert labels of any shape to comparable NumPy integers, strings ("U"), or bytes ("S").

    Whole floats become integers. An array of Python objects, or of NumPy's StringDType, gets the
    type of its entries.

    Args:
        name: Name of the argument, for messages.
        labels: Array, list, or tensor.

    Raises:
        ValueError: Labels mix numbers and strings, are floats that `as_labels` refuses, or have
            another type.
    """
    array = as_array(name, labels)
    kind = array.dtype.kind
    # NumPy converts the numbers to strings in a list of both.
    if kind in "OT" or (kind in "SU" and not isinstance(labels, np.ndarray)):
        array = _of_one_kind(name, array if kind == "O" else np.asarray(labels, dtype=object))
        kind = array.dtype.kind
    # The kind of bfloat16 is "V", as for untyped bytes, so use the name.
    dtype = array.dtype.name
    if dtype.startswith(("float", "bfloat")):
        check_exact(array, dtype, name)
        return array.astype(np.int64)
    if kind == "u" and (not array.size or array.max() <= np.iinfo(np.int64).max):
        return array.astype(np.int64)  # so that they stay integers when joined
    if kind not in "biuSU":
        raise _no_labels(name, f"dtype {array.dtype}")
    return array


def joined_labels(sets: Iterable[tuple[str, npt.ArrayLike]]) -> np.ndarray:
    """Concatenate the labels of several sets.

    Args:
        sets: Name of the argument and labels `[n]` of each set.

    Raises:
        ValueError: As in `plain_labels`. Also if strings are mixed with numbers or bytes.
    """
    names, given = zip(*((name, plain_labels(name, labels)) for name, labels in sets))
    kinds = [array.dtype.kind if array.dtype.kind in "SU" else "" for array in given]
    if len(set(kinds)) > 1:
        # NumPy would convert the numbers to strings, and 1 would equal "1".
        raise ArgumentError(
            f"{' and '.join(dict.fromkeys(names))} must be of one kind, but got "
            f"{' and '.join(dict.fromkeys(str(array.dtype) for array in given))}."
        )
    if {array.dtype.kind for array in given} >= {"i", "u"}:
        given = tuple(array.astype(object) for array in given)  # NumPy would convert them to floats
    return np.concatenate(given)


def _of_one_kind(name: str, objects: np.ndarray) -> np.ndarray:
    """Convert an array of objects to an array of strings, bytes, integers, or floats."""
    entries = objects.ravel().tolist()
    for kind, dtype in ((str, "U"), (bytes, "S"), (Integral, "q"), (Real, "d")):
        if all(isinstance(entry, kind) for entry in entries):
            try:
                return objects.astype(dtype)
            except OverflowError as error:
                raise _no_labels(name, "a number beyond 64 bits") from error
    first = type(entries[0])
    other = next((x for x in entries if not isinstance(x, first)), entries[0])
    beside = "" if isinstance(other, first) else f" next to {shown(entries[0])}"
    raise _no_labels(name, f"{shown(other)}{beside}")


def _no_labels(name: str, received: str) -> ArgumentError:
    return ArgumentTypeError(
        f"{name} must be only whole numbers, only str, or only bytes, but got {received}."
    )
