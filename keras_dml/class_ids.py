"""Checks and conversions of class ids, so that no cast merges two classes."""

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

# From these limits on, neighboring whole numbers can be equal.
_LIMITS = {"bfloat16": 2**8, "float16": 2**11, "float32": 2**24, "float64": 2**53}


def as_labels(labels: TensorLike, name: str = "y_true") -> Tensor:
    """Convert labels to a tensor that keeps them distinct: integers stay integers.

    Integers become int64, which replicas can exchange. On JAX they keep their dtype.

    Args:
        labels: Class ids, or groups as numbers: array, list, or tensor.
        name: Name of the argument, for messages.

    Raises:
        ValueError: The labels are None or not numbers; class ids exceed the tensor's dtype
            (integers beyond 32 bits on JAX without `jax_enable_x64`); or floats are NaN, not whole,
            or so large that neighboring class ids are equal (from 2²⁴ in float32, 2⁵³ in float64,
            2¹¹ in float16, 2⁸ in bfloat16). A graph has no known numbers to check, so use
            `are_apart` there.
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
    """Return the dtype of 64-bit integers after `as_labels`: int64, or the backend's widest."""
    return keras.backend.standardize_dtype(as_labels(np.zeros(1, "int64")).dtype)


def are_apart(labels: Tensor) -> Tensor | bool:
    """Return whether all labels are whole numbers within their dtype's exact range."""
    limit = _LIMITS.get(keras.backend.standardize_dtype(labels.dtype))
    if limit is None:
        return True
    # ops.floor is float32 on JAX and PyTorch. The remainder of NaN is NaN.
    whole = ops.equal(labels % 1.0, 0.0)
    return ops.all(ops.logical_and(whole, ops.abs(labels) < limit))


def one_hot(class_ids: Tensor, num_classes: int) -> Tensor:
    """Return the class of each image as bool `[n, K]`. An id outside 0 … K − 1 has no class."""
    dtype = keras.backend.standardize_dtype(class_ids.dtype)
    if dtype in ("float16", "bfloat16"):  # which cannot represent all numbers up to K
        dtype = "float32"
    classes = ops.arange(num_classes, dtype=dtype)
    return ops.equal(ops.cast(class_ids, dtype)[:, None], classes[None, :])


def plain_labels(name: str, labels: npt.ArrayLike) -> np.ndarray:
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
        _check_floats(array, _LIMITS.get(dtype, _LIMITS["float64"]), dtype, name)
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
            f"{' and '.join(dict.fromkeys(names))} must be of one kind. "
            f"Received: {' and '.join(dict.fromkeys(str(array.dtype) for array in given))}"
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
    beside = "" if isinstance(other, first) else f" beside {shown(entries[0])}"
    raise _no_labels(name, f"{shown(other)}{beside}")


def _no_labels(name: str, received: str) -> ArgumentError:
    return ArgumentError(
        f"{name} must be numbers or strings: only whole numbers, only str, or only bytes. "
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
                f"{name} must hold class ids of {dtype}, the widest integer type of this backend "
                f"(on JAX, enable jax_enable_x64). Received: {numbers[bad][0]} in {name}"
            )
    return tensor


def _check_floats(labels: Tensor | np.ndarray, limit: int, dtype: str, name: str) -> None:
    found = known_numbers(labels)
    if found is None:
        return
    wanted = f"that {dtype} tells apart, below {limit}: pass larger ids as integers"
    bad = np.argwhere(~(np.abs(found) < limit))
    if not len(bad):
        wanted, bad = "that are whole numbers", np.argwhere(found != np.floor(found))
    if len(bad):
        where = f" in row {bad[0][0]} of {name}" if found.ndim else f" as {name}"
        raise ArgumentError(
            f"{name} must be class ids {wanted}. Received: {found[tuple(bad[0])]}{where}"
        )
