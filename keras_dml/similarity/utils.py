"""Arrays from lookups, and the memory of GPUs."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_dml.similarity.types import Lookup

__all__ = ["tf_cap_memory", "unpack_lookup_distances", "unpack_lookup_labels"]

_NO_LABEL = 0x7FFFFFFF


def tf_cap_memory() -> None:
    """Let TensorFlow allocate GPU memory as needed. Does nothing on other backends.

    Examples:
        >>> tf_cap_memory()
    """
    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf

    for gpu in tf.config.list_physical_devices("GPU"):
        try:
            tf.config.experimental.set_memory_growth(gpu, True)
        except RuntimeError as error:  # after the first use of the GPU
            print(error)


def unpack_lookup_labels(lookups: Sequence[Sequence[Lookup]], dtype: Any) -> np.ndarray:
    """Return the labels `[q, k]`. Short rows, and neighbors without label, get 0x7FFFFFFF.

    Examples:
        >>> unpack_lookup_labels([[Lookup(1, 0.1, 3), Lookup(2, 0.2, 4)]], "int32")
        array([[3, 4]], dtype=int32)

    Args:
        lookups: Neighbors of each query.
        dtype: Dtype of the array. NumPy names, and dtypes of TensorFlow.
    """
    labels = [[_NO_LABEL if one.label is None else one.label for one in row] for row in lookups]
    return _rectangle(labels, dtype, _NO_LABEL, "label")


def unpack_lookup_distances(
    lookups: Sequence[Sequence[Lookup]], dtype: Any, distance_rounding: int | None = None
) -> np.ndarray:
    """Return the distances `[q, k]`. Short rows get infinity.

    Examples:
        >>> unpack_lookup_distances([[Lookup(1, 0.123)]], "float32", distance_rounding=1)
        array([[0.1]], dtype=float32)

    Args:
        lookups: Neighbors of each query.
        dtype: Dtype of the array.
        distance_rounding: Number of digits, or None.
    """
    distances = _rectangle([[one.distance for one in row] for row in lookups], dtype, np.inf,
                           "distance")  # fmt: skip
    if distance_rounding is None:
        return distances
    factor = distances.dtype.type(10.0**distance_rounding)
    return np.round(distances * factor) / factor


def _rectangle(rows: Sequence[Sequence[Any]], dtype: Any, missing: Any, what: str) -> np.ndarray:
    width = max(map(len, rows), default=0)
    short = sum(len(row) < width for row in rows)
    if short:
        print(f"WARNING: {short} rows have fewer than {width} neighbors. Each missing {what} is "
              f"{missing}.")  # fmt: skip
    filled = [[*row, *[missing] * (width - len(row))] for row in rows]
    name = keras.backend.standardize_dtype(dtype)
    return np.array(filled, dtype=name).reshape(len(rows), width)
