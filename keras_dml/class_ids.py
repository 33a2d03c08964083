"""Class ids as they came, or refused: no cast may make one class of two."""

from collections.abc import Iterable
from numbers import Integral, Real
from typing import cast

import keras
import numpy as np
import numpy.typing as npt
from keras import ops

from keras_dml.checks import as_array, known_numbers, numbers_of, shown
from keras_dml.errors import ArgumentError
from keras_dml.types import Tensor, TensorLike

# From these on neighboring whole numbers are no longer told apart.
_LIMITS = {"bfloat16": 2**8, "float16": 2**11, "float32": 2**24, "float64": 2**53}


def as_labels(labels: TensorLike, name: str = "y_true") -> Tensor:
    """Labels as a tensor that keeps them apart: integers as integers, whole floats as floats.

    Integers become int64 (what replicas can exchange), on JAX the integers that it has.

    Args:
        labels: class ids, or groups as numbers; array, list or tensor.
        name: of the argument, for the messages.

    Raises:
        ValueError: None, or something that is no number; class ids that the tensor cannot hold
            (integers beyond 32 bits on JAX without `jax_enable_x64`); floats that are NaN, no
            whole numbers, or so large that neighboring class ids are one number (from 2²⁴ in
            float32, 2⁵³ in float64, 2¹¹ in float16, 2⁸ in bfloat16). Inside a graph there are no
            numbers to look at: `are_apart` says it there.
    """
    labels = numbers_of(name, labels, "class ids")
    tensor = cast(Tensor, labels) if ops.is_tensor(labels) else _from_numbers(labels, name)
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if dtype in _LIMITS:
        _check_floats(tensor, _LIMITS[dtype], dtype, name)
        return tensor
    if keras.backend.backend() != "jax":
        return ops.cast(tensor, "int64")
    return ops.cast(tensor, "int32") if dtype == "bool" else tensor


def widest_integers() -> str:
    """The dtype that `as_labels` gives integers of 64 bits: int64, or what this backend has."""
    return keras.backend.standardize_dtype(as_labels(np.zeros(1, "int64")).dtype)


def are_apart(labels: Tensor) -> Tensor | bool:
    """Whether all labels are whole numbers, none too large for its dtype: true of integers."""
    limit = _LIMITS.get(keras.backend.standardize_dtype(labels.dtype))
    if limit is None:
        return True
    whole = ops.equal(labels, ops.floor(labels))  # not of NaN
    return ops.all(ops.logical_and(whole, ops.abs(labels) < limit))


def one_hot(class_ids: Tensor, num_classes: int) -> Tensor:
    """Which of the classes 0 … K − 1 each image has, bool `[n, K]`; an id beyond them has none."""
    dtype = keras.backend.standardize_dtype(class_ids.dtype)
    if dtype in ("float16", "bfloat16"):  # which lack some of the numbers up to K
        dtype = "float32"
    classes = ops.arange(num_classes, dtype=dtype)
    return ops.equal(ops.cast(class_ids, dtype)[:, None], classes[None, :])


def plain_labels(name: str, labels: npt.ArrayLike) -> np.ndarray:
    """Labels of any shape as NumPy's integers, strings ("U") or bytes ("S"), to be compared.

    Whole floats become integers; an array of Python objects, or of NumPy's StringDType, what its
    entries are.

    Args:
        name: of the argument, for the messages.
        labels: array, list or tensor.

    Raises:
        ValueError: numbers beside strings, floats as `as_labels` refuses them, or anything else.
    """
    array = as_array(name, labels)
    kind = array.dtype.kind
    # NumPy makes strings of the numbers in a list of both.
    if kind in "OT" or (kind in "SU" and not isinstance(labels, np.ndarray)):
        array = _of_one_kind(name, array if kind == "O" else np.asarray(labels, dtype=object))
        kind = array.dtype.kind
    dtype = array.dtype.name  # the kind of bfloat16 is "V", as that of bytes without a meaning
    if dtype.startswith(("float", "bfloat")):
        _check_floats(array, _LIMITS.get(dtype, _LIMITS["float64"]), dtype, name)
        return array.astype(np.int64)
    if kind == "u" and (not array.size or array.max() <= np.iinfo(np.int64).max):
        return array.astype(np.int64)  # beside which others stay integers
    if kind not in "biuSU":
        raise _no_labels(name, f"dtype {array.dtype}")
    return array


def joined_labels(sets: Iterable[tuple[str, npt.ArrayLike]]) -> np.ndarray:
    """The labels of several sets as one array, one behind the other.

    Args:
        sets: of each, what its argument is called and its labels `[n]`.

    Raises:
        ValueError: as `plain_labels`, or strings beside numbers or bytes.
    """
    names, given = zip(*((name, plain_labels(name, labels)) for name, labels in sets))
    kinds = [array.dtype.kind if array.dtype.kind in "SU" else "" for array in given]
    if len(set(kinds)) > 1:
        # NumPy would make texts of the numbers, and 1 would be "1".
        raise ArgumentError(
            f"{' and '.join(dict.fromkeys(names))} must be of one kind. "
            f"Received: {' and '.join(dict.fromkeys(str(array.dtype) for array in given))}"
        )
    if {array.dtype.kind for array in given} >= {"i", "u"}:
        given = tuple(array.astype(object) for array in given)  # NumPy would make floats of them
    return np.concatenate(given)


def _of_one_kind(name: str, objects: np.ndarray) -> np.ndarray:
    """An array of objects as one of strings, bytes, integers or floats."""
    entries = objects.ravel().tolist()
    for kind, dtype in ((str, "U"), (bytes, "S"), (Integral, "q"), (Real, "d")):
        if all(isinstance(entry, kind) for entry in entries):
            try:
                return objects.astype(dtype)
            except OverflowError as error:
                raise _no_labels(name, "a number beyond 64 bits") from error
    first = type(entries[0])
    other = next((x for x in entries if not isinstance(x, first)), entries[0])
    beside = "" if isinstance(other, first) else f" beside {shown(entries[0])}"
    raise _no_labels(name, f"{shown(other)}{beside}")


def _no_labels(name: str, received: str) -> ArgumentError:
    return ArgumentError(
        f"{name} must be numbers, or strings: whole numbers alone, str alone or bytes alone. "
        f"Received: {received} in {name}"
    )


def _from_numbers(labels: TensorLike, name: str) -> Tensor:
    numbers = np.asarray(labels)
    tensor = ops.convert_to_tensor(numbers)
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if dtype in _LIMITS:
        _check_floats(numbers, _LIMITS[dtype], dtype, name)
    elif numbers.dtype.kind in "iu" and numbers.dtype.itemsize > np.dtype(dtype).itemsize:
        held = np.iinfo(dtype)
        bad = (numbers < held.min) | (numbers > held.max)
        if bad.any():
            raise ArgumentError(
                f"{name} must hold class ids of {dtype}, the widest integer of this backend as it "
                f"is set up (on JAX, enable jax_enable_x64). Received: {numbers[bad][0]} in {name}"
            )
    return tensor


def _check_floats(labels: Tensor | np.ndarray, limit: int, dtype: str, name: str) -> None:
    found = known_numbers(labels)
    if found is None:
        return
    wanted = f"that {dtype} tells apart, below {limit}: give larger ones as integers"
    bad = np.argwhere(~(np.abs(found) < limit))
    if not len(bad):
        wanted, bad = "that are whole numbers", np.argwhere(found != np.floor(found))
    if len(bad):
        where = f" in row {bad[0][0]} of {name}" if found.ndim else f" as {name}"
        raise ArgumentError(
            f"{name} must be class ids {wanted}. Received: {found[tuple(bad[0])]}{where}"
        )
