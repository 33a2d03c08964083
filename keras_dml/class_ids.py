"""Class ids as they came, or refused: no cast may make one class of two."""

from typing import cast

import keras
import numpy as np
from keras import ops

from keras_dml.checks import known_numbers, numbers_of
from keras_dml.errors import ArgumentError
from keras_dml.types import Tensor, TensorLike

# From these on neighboring whole numbers are no longer told apart.
_LIMITS = {"bfloat16": 2**8, "float16": 2**11, "float32": 2**24, "float64": 2**53}


def as_labels(labels: TensorLike, name: str = "y_true") -> Tensor:
    """Labels as a tensor that keeps them apart: integers as integers, floats as floats.

    Integers become int64 (what replicas can exchange), on JAX the integers that it has.

    Args:
        labels: class ids, or groups as numbers; array, list or tensor.
        name: of the argument, for the messages.

    Raises:
        ValueError: None, or something that is no number; class ids that the tensor cannot hold
            (integers beyond 32 bits on JAX without `jax_enable_x64`); floats that are NaN, or so
            large that neighboring class ids are one number (from 2²⁴ in float32, 2⁵³ in float64,
            2¹¹ in float16, 2⁸ in bfloat16). Inside a graph there are no numbers to look at:
            `are_apart` says it there.
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
    """Whether no label is NaN or too large for its dtype: a bool tensor, true of integers."""
    limit = _LIMITS.get(keras.backend.standardize_dtype(labels.dtype))
    return True if limit is None else ops.all(ops.abs(labels) < limit)


def one_hot(class_ids: Tensor, num_classes: int) -> Tensor:
    """Which of the classes 0 … K − 1 each image has, bool `[n, K]`; an id beyond them has none."""
    dtype = keras.backend.standardize_dtype(class_ids.dtype)
    if dtype in ("float16", "bfloat16"):  # which lack some of the numbers up to K
        dtype = "float32"
    classes = ops.arange(num_classes, dtype=dtype)
    return ops.equal(ops.cast(class_ids, dtype)[:, None], classes[None, :])


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
    numbers = known_numbers(labels)
    if numbers is None:
        return
    bad = np.argwhere(~(np.abs(numbers) < limit))
    if len(bad):
        where = f" in row {bad[0][0]} of {name}" if numbers.ndim else f" as {name}"
        raise ArgumentError(
            f"{name} must be class ids that {dtype} tells apart, below {limit}: give larger ones "
            f"as integers. Received: {numbers[tuple(bad[0])]}{where}"
        )
