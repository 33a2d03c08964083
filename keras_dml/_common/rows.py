"""Prepared embeddings of an index: finite float32 rows, with length 1 for cosine."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from keras_dml._common.blocks import slices
from keras_dml._common.errors import ArgumentError, argument_error, as_array, shape_error, shown
from keras_dml._common.types import METRICS, Float32Array, Float64Array, Metric

_NAMED = 5
# Number of values to convert to float64 at once: 2^22 are 32 MiB.
BLOCK = 2**22


def first_few(values: np.ndarray) -> str:
    """Format the first five values of an array, such as "3, 7" or "1, 2, 3, 4, 5, …"."""
    return ", ".join(map(repr, values[:_NAMED].tolist())) + ", …" * (len(values) > _NAMED)


def row_blocks(rows: np.ndarray) -> Iterator[slice]:
    """Return slices of `rows` with about `BLOCK` values each."""
    return slices(len(rows), BLOCK // rows.shape[1])


def finite_rows(array: npt.ArrayLike, name: str, first: int = 0) -> Float32Array:
    """Convert `array` to float32 rows of finite numbers.

    Args:
        array: Numbers `[n, d]`, d at least 1.
        name: Name of the caller's argument, for messages.
        first: Row number of the first row, if `array` is a block of the caller's argument.

    Returns:
        A new C-contiguous float32 array `[n, d]`.

    Raises:
        ValueError: The array does not contain real numbers, does not have rank 2, has no columns,
            or contains NaN or infinity (the message has the count and the first rows).
    """
    array = as_array(name, array)
    # NumPy would drop the imaginary part, and parse the text.
    if array.dtype.kind in "cSU":
        raise ArgumentError(f"{name} must be an array of numbers, but got dtype {array.dtype}.")
    try:
        # A float64 beyond the range of float32 becomes infinite here, and is reported below.
        with np.errstate(over="ignore"):
            rows = array.astype(np.float32, order="C")
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(
            f"{name} must be an array of numbers, but got {shown(array)} ({error})."
        ) from error
    if np.ndim(array) != 2 or rows.shape[1] < 1:
        raise shape_error(name, "an array of shape [n, d] with d at least 1", array)
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        raise ArgumentError(
            f"{name} must be finite, but got NaN or infinity in {len(bad)} of {len(rows)} rows "
            f"(row numbers {first_few(bad + first)})."
        )
    return rows


def rows_of_sets(
    embeddings: npt.ArrayLike, gallery: npt.ArrayLike | None, metric: Metric
) -> tuple[Float32Array, Float32Array]:
    """Return queries and items as finite float32 rows: the same array without a gallery."""
    if not isinstance(metric, str) or metric not in METRICS:
        raise argument_error("metric", f"one of {', '.join(map(repr, METRICS))}", metric)
    queries = finite_rows(embeddings, "embeddings")
    items = queries if gallery is None else finite_rows(gallery, "gallery")
    if not len(queries) or not len(items) or queries.shape[1] != items.shape[1]:
        shapes = f"shape {queries.shape}"
        if gallery is not None:
            shapes = f"shapes {queries.shape} and {items.shape}"
        raise ArgumentError(
            "embeddings and gallery must have at least one row each and the same width, but got "
            f"{shapes}."
        )
    return queries, items


def normalized(rows: Float32Array, out: Float32Array | None = None) -> Float32Array:
    """Scale rows to length 1, float32 `[n, d]`, into `out` if set. Rows of zeros stay zero."""
    out = np.empty_like(rows) if out is None else out
    for block in row_blocks(rows):
        lengths = np.sqrt(np.einsum("nd,nd->n", rows[block], rows[block], dtype=np.float64))
        lengths[lengths == 0] = 1
        out[block] = np.divide(rows[block], lengths[:, None], dtype=np.float64)
    return out


def prepared_rows(array: npt.ArrayLike, name: str, metric: Metric) -> Float32Array:
    """Return `finite_rows`, normalized for "cosine", with one copy of the caller's array."""
    rows = finite_rows(array, name)
    return normalized(rows, out=rows) if metric == "cosine" else rows


def center(rows: np.ndarray, metric: Metric) -> Float64Array:
    """Return the vector to subtract from rows before products, float64 `[d]`.

    Distances do not change if all vectors move by -center, and |x|² - 2x·y + |y|² loses fewer
    digits near the origin. Similarities change, so the center is 0 for "cosine".
    """
    if metric == "cosine":
        return np.zeros(rows.shape[1])
    return rows.mean(axis=0, dtype=np.float64)


def centered(rows: Float32Array, middle: Float64Array) -> Float32Array:
    """Return `rows` - `middle`, float32. Returns `rows` unchanged if `middle` is 0."""
    if not middle.any():
        return rows
    out = np.empty_like(rows)
    for block in row_blocks(rows):
        out[block] = rows[block] - middle
    return out
