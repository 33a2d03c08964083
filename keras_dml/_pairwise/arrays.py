"""Checks and conversions of class ids and embeddings."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_dml._common.errors import (
    EXACT_LIMITS,
    ArgumentError,
    ArgumentTypeError,
    check_exact,
    has_gaps,
    shape_error,
    shown,
)
from keras_dml._common.types import Tensor, TensorLike

_ADVICE_FOR_STRINGS = " For strings, pass np.unique(labels, return_inverse=True)[1]."
# Prefixes of the names of all dtypes, of any backend, with real values.
_REAL = ("bool", "int", "uint", "float", "bfloat")


def numbers_of(name: str, value: Any, what: str, advice: str = "") -> Tensor:
    """Convert `value` to a tensor of real numbers, with the gradient of the tensors in it.

    Args:
        name: Name of the argument, for the message.
        value: Tensor, variable, array, or lists of numbers or of tensors.
        what: Description of the numbers, in the plural: "class ids".
        advice: How to convert other values, for the end of the message.

    Raises:
        TypeError: The value is not numeric, is complex, or has lists of different lengths.
    """

    def error(received: str) -> ArgumentTypeError:
        return ArgumentTypeError(
            f"{name} must be {what}, which are numbers, but got {received}.{advice}"
        )

    if isinstance(value, keras.Variable):
        # Use its value, which has a gradient, because custom gradients refuse variables.
        value = value.value
    if has_gaps(value):
        raise error("masked entries or ragged rows")
    try:
        has_tensors = any(map(ops.is_tensor, keras.tree.flatten(value)))
        numbers = value if has_tensors else np.asarray(value)  # Python numbers keep 64 bits
        tensor = ops.convert_to_tensor(numbers, sparse=False)
    except Exception as cause:  # each backend has its error
        raise error(shown(value)) from cause
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if not dtype.startswith(_REAL):
        raise error(f"dtype {dtype}")
    return tensor


def as_embeddings(embeddings: TensorLike) -> Tensor:
    """Apply `numbers_of` to the `y_pred` of a loss."""
    return numbers_of("y_pred", embeddings, "embeddings or logits")


def check_order(y_true: TensorLike, y_pred: TensorLike) -> None:
    """Raise `ValueError` for embeddings as `y_true` and class ids as `y_pred`."""
    of_labels, of_embeddings = known_shape(y_true), known_shape(y_pred)
    if of_labels is None or of_embeddings is None or len(of_labels) != 2 or of_labels[1] == 1:
        return
    if len(of_embeddings) == 1 or of_embeddings[1:] == (1,):
        raise ArgumentError(
            f"y_true must be class ids and y_pred embeddings, but got shapes {of_labels} and "
            f"{of_embeddings}. The order of the arguments is loss(class_ids, embeddings)."
        )


def check_class_range(class_ids: Tensor, num_classes: int, where: str) -> None:
    """Raise `ValueError` unless class ids, if known, are from 0 to `num_classes` − 1.

    Args:
        class_ids: `[n]`.
        num_classes: Number of classes in `y_pred`.
        where: Where to set the number of classes, for the message.
    """
    known = known_numbers(class_ids)
    if known is None:
        return
    bad = np.flatnonzero(~((known >= 0) & (known < num_classes)))
    if len(bad):
        raise ArgumentError(
            f"y_true must be class ids from 0 to {num_classes - 1}, but got {known[bad[0]]} in row "
            f"{bad[0]}. y_pred has {num_classes} classes ({where})."
        )


def checked_weights(weights: TensorLike, images: int | None) -> Tensor:
    """Convert sample weights to a tensor, or raise `ValueError`.

    Args:
        weights: A number, or one weight for each image, `[n]` or `[n, 1]`.
        images: n, or None if it is unknown.
    """
    tensor = numbers_of("sample_weight", weights, "weights")
    shape = tuple(tensor.shape)
    fits = images is None or not shape or shape[0] in (1, None, images)
    if not fits or shape[1:] not in ((), (1,)):
        raise ArgumentError(
            "sample_weight must be None, a number, or one weight for each image, [n] or [n, 1], "
            f"but got shape {shape} for {images} images."
        )
    return tensor


def check_embeddings(embeddings: Tensor) -> None:
    """Raise `ValueError` unless embeddings (or logits) are `[n, d]` and, if known, finite."""
    if len(embeddings.shape) != 2 or embeddings.shape[1] == 0:
        wanted = "embeddings or logits of shape [n, d], d at least 1"
        raise shape_error("y_pred", wanted, embeddings)
    numbers_of_rows = known_numbers(embeddings)
    if numbers_of_rows is None:
        return
    bad = np.flatnonzero(~np.isfinite(numbers_of_rows).all(axis=1))
    if len(bad):
        raise ArgumentError(
            f"y_pred must be finite, but got NaN or infinity in {len(bad)} of "
            f"{embeddings.shape[0]} rows, first in row {bad[0]}."
        )


def known_numbers(tensor: TensorLike) -> np.ndarray | None:
    """Return a tensor's numbers, or None in a graph or a trace, where they are unknown.

    Also None for a tensor of PyTorch with a gradient: a training step on NaN continues, as in a
    graph, because a loss scale needs it.
    """
    if getattr(tensor, "requires_grad", False):
        return None
    try:
        return ops.convert_to_numpy(tensor)
    except Exception:  # each backend has its error
        return None


def checked_class_ids(class_ids: Tensor) -> Tensor:
    """Return class ids `[n]` from `[n]` or `[n, 1]`, or raise `ValueError`."""
    advice = "For one-hot labels, pass np.argmax(labels, axis=-1)."
    return one_per_image(class_ids, "y_true", "class ids", advice)


def one_per_image(values: Tensor, name: str, what: str, advice: str = "") -> Tensor:
    """Return `[n]` from `[n]` or `[n, 1]`, or raise `ValueError`.

    Args:
        values: The tensor.
        name: Name of the argument, for the message.
        what: Description of the values, in the plural: "class ids".
        advice: How to convert other shapes, for the end of the message.
    """
    if len(values.shape) == 2 and values.shape[1] in (1, None):
        values = ops.reshape(values, ops.shape(values)[:1])  # the graph fails for more columns
    if len(values.shape) != 1:
        raise shape_error(name, f"{what} of shape [n] or [n, 1]", values, advice=advice)
    return values


def check_rows(labels: Tensor, embeddings: Tensor) -> None:
    """Raise `ValueError` unless the numbers of labels and embeddings are equal."""
    rows, images = labels.shape[0], embeddings.shape[0]
    if rows is not None and images is not None and rows != images:
        raise ArgumentError(
            f"y_true and y_pred must have one row for each image, but got {rows} class ids and "
            f"{images} embeddings."
        )


def known_shape(value: TensorLike) -> tuple[int | None, ...] | None:
    """Return the shape of a tensor or array-like value. None if it is unknown."""
    try:
        return tuple(value.shape) if hasattr(value, "shape") else np.shape(value)
    except Exception:  # an unknown rank, or a list of traced tensors: each backend has its error
        return None


def as_labels(labels: TensorLike, name: str = "y_true", what: str = "class ids") -> Tensor:
    """Convert labels to a tensor that keeps them distinct: integers stay integers.

    Integers become int64, which replicas can exchange. On JAX they have at least 32 bits.

    Args:
        labels: Class ids, or groups as numbers: array, list, or tensor.
        name: Name of the argument, for messages.
        what: Description of the labels, in the plural.

    Raises:
        ValueError: The labels are None or not numbers. Class ids exceed the tensor's dtype
            (integers beyond 32 bits on JAX without `jax_enable_x64`); or floats are NaN, not whole,
            or so large that neighboring class ids are equal (from 2²⁴ in float32, 2⁵³ in float64,
            2¹¹ in float16, 2⁸ in bfloat16). A graph has no known numbers to check, so use
            `are_apart` there.
    """
    tensor = numbers_of(name, labels, what, _ADVICE_FOR_STRINGS)
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if dtype in EXACT_LIMITS:
        # The dtype of the tensor could round the numbers of an array.
        numbers = known_numbers(tensor if ops.is_tensor(labels) else labels)
        check_exact(numbers, dtype, name, what)
        return tensor
    if keras.backend.backend() != "jax":
        return ops.cast(tensor, "int64")
    check_width(labels, dtype, name, what)
    # The index of a class could exceed 8 or 16 bits.
    return ops.cast(tensor, "int32") if np.dtype(dtype).itemsize < 4 else tensor


def check_width(labels: TensorLike, dtype: str, name: str, what: str) -> None:
    """Raise `ValueError` if a conversion to `dtype`, the dtype of a tensor, changes integers.

    Args:
        labels: Array, list, or tensor.
        dtype: The dtype.
        name: Name of the argument, for the message.
        what: Description of the labels, in the plural.
    """
    numbers = known_numbers(labels) if "int" in dtype else None
    if numbers is None or numbers.dtype == dtype:
        return
    bad = numbers != numbers.astype(dtype)
    if bad.any():
        raise ArgumentError(
            f"{name} must be {what} within {dtype}, the widest integer type of this backend, but "
            f"got {numbers[bad][0]}. On JAX, enable jax_enable_x64."
        )


def of_one_dtype(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Convert the labels of two sets to a dtype that can represent both."""
    first, second = (keras.backend.standardize_dtype(labels.dtype) for labels in (a, b))
    if first == second:
        return a, b
    common = np.promote_types(*(each.replace("bfloat16", "float32") for each in (first, second)))
    # NumPy converts int64 next to uint64 to floats.
    kind = common.kind if "float" in first + second or common.kind != "f" else "i"
    widest = np.dtype(widest_integers()).itemsize  # 4 on JAX without jax_enable_x64
    dtype = np.dtype(f"{kind}{min(common.itemsize, widest)}").name
    return ops.cast(a, dtype), ops.cast(b, dtype)


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
