"""Embeddings as an index keeps them: finite float32 rows, of length 1 for cosine."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from keras_dml.checks import as_array
from keras_dml.errors import ArgumentError
from keras_dml.nearness import Metric

_NAMED = 5
# Numbers taken to float64 at once: 2^22 are 32 MiB.
BLOCK = 2**22


def first_few(values: np.ndarray) -> str:
    """The first five of an array's values as text, such as "3, 7" or "1, 2, 3, 4, 5, …"."""
    return ", ".join(map(repr, values[:_NAMED].tolist())) + ", …" * (len(values) > _NAMED)


def row_blocks(rows: np.ndarray, numbers: int = BLOCK) -> Iterator[slice]:
    """Slices of `rows` of about `numbers` numbers each."""
    step = max(1, numbers // rows.shape[1])
    return (slice(start, min(start + step, len(rows))) for start in range(0, len(rows), step))


def finite_rows(array: npt.ArrayLike, name: str) -> npt.NDArray[np.float32]:
    """`array` as float32 rows of finite numbers.

    Args:
        array: numbers `[n, d]`, d at least 1.
        name: what the caller's argument is called, for the messages.

    Returns:
        A new C-contiguous float32 array `[n, d]`.

    Raises:
        ValueError: not real numbers, not of rank 2, no columns, NaN or infinity (counted, and the
            first rows named).
    """
    array = as_array(name, array)
    if array.dtype.kind in "cSU":  # NumPy would drop the imaginary part and read the text
        raise ArgumentError(f"{name} must be an array of numbers. Received: dtype {array.dtype}")
    try:
        # A float64 beyond float32's range becomes infinite here and is reported below.
        with np.errstate(over="ignore"):
            rows = array.astype(np.float32, order="C")
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(f"{name} must be an array of numbers. {error}") from error
    if np.ndim(array) != 2 or rows.shape[1] < 1:
        raise ArgumentError(
            f"{name} must have shape [n, d] with d at least 1. "
            f"Received: {name} of shape {np.shape(array)}"
        )
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        raise ArgumentError(
            f"{name} must be finite. Received: NaN or infinity in {len(bad)} of {len(rows)} rows "
            f"(row numbers {first_few(bad)})"
        )
    return rows


def normalized(
    rows: npt.NDArray[np.float32], out: npt.NDArray[np.float32] | None = None
) -> npt.NDArray[np.float32]:
    """Rows of length 1, float32 `[n, d]`, in `out` if given; a row of zeros stays zero."""
    out = np.empty_like(rows) if out is None else out
    for block in row_blocks(rows):
        lengths = np.sqrt(np.einsum("nd,nd->n", rows[block], rows[block], dtype=np.float64))
        lengths[lengths == 0] = 1
        out[block] = np.divide(rows[block], lengths[:, None], dtype=np.float64)
    return out


def prepared_rows(array: npt.ArrayLike, name: str, metric: Metric) -> npt.NDArray[np.float32]:
    """`finite_rows`, normalised for "cosine": one copy of the caller's array."""
    rows = finite_rows(array, name)
    return normalized(rows, out=rows) if metric == "cosine" else rows


def center(rows: np.ndarray, metric: Metric) -> npt.NDArray[np.float64]:
    """What to take off rows before products of them are taken, float64 `[d]`.

    Distances do not change when everything moves by -center, and |x|² - 2x·y + |y|² loses fewer
    digits near the origin. Similarities do change, so for "cosine" it is 0.
    """
    if metric == "cosine":
        return np.zeros(rows.shape[1])
    return rows.mean(axis=0, dtype=np.float64)


def centered(
    rows: npt.NDArray[np.float32], middle: npt.NDArray[np.float64]
) -> npt.NDArray[np.float32]:
    """`rows` - `middle`, float32; `rows` themselves if `middle` is 0."""
    if not middle.any():
        return rows
    out = np.empty_like(rows)
    for block in row_blocks(rows):
        out[block] = rows[block] - middle
    return out
