"""Class ids as tensors, so that no cast merges two classes."""

from typing import cast

import keras
import numpy as np
from keras import ops

from keras_dml._common.errors import ArgumentError
from keras_dml._common.labels import EXACT_LIMITS, check_exact
from keras_dml._common.types import Tensor, TensorLike
from keras_dml._pairwise.arrays import known_numbers, numbers_of

__all__ = ["are_apart", "as_labels", "one_hot", "widest_integers"]

_HINT = " (for strings, pass np.unique(labels, return_inverse=True)[1])"


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
    labels = numbers_of(name, labels, "class ids", _HINT)
    tensor = cast(Tensor, labels) if ops.is_tensor(labels) else _from_numbers(labels, name)
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if dtype in EXACT_LIMITS:
        check_exact(known_numbers(tensor), dtype, name)
        return tensor
    if keras.backend.backend() != "jax":
        return ops.cast(tensor, "int64")
    return ops.cast(tensor, "int32") if dtype == "bool" else tensor


def widest_integers() -> str:
    """Return the dtype of 64-bit integers after `as_labels`: int64, or the backend's widest."""
    return keras.backend.standardize_dtype(as_labels(np.zeros(1, "int64")).dtype)


def are_apart(labels: Tensor) -> Tensor | bool:
    """Return whether all labels are whole numbers within their dtype's exact range."""
    limit = EXACT_LIMITS.get(keras.backend.standardize_dtype(labels.dtype))
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


def _from_numbers(labels: TensorLike, name: str) -> Tensor:
    numbers = np.asarray(labels)
    tensor = ops.convert_to_tensor(numbers)
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if dtype in EXACT_LIMITS:
        check_exact(numbers, dtype, name)
    elif numbers.dtype.kind in "iu" and numbers.dtype.itemsize > np.dtype(dtype).itemsize:
        held = np.iinfo(dtype)
        bad = (numbers < held.min) | (numbers > held.max)
        if bad.any():
            raise ArgumentError(
                f"{name} must hold class ids of {dtype}, the widest integer type of this backend "
                f"(on JAX, enable jax_enable_x64). Received: {numbers[bad][0]} in {name}"
            )
    return tensor
