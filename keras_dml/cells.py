"""Counts and sums by cell, and look-ups in a table, for as many numbers as a batch has pairs."""

import keras
from keras import ops

from keras_dml.bounds import at_most
from keras_dml.types import Tensor

__all__ = ["are_quick", "counts_in_cells", "jax_is_on_cpu", "look_up", "sums_in_cells"]

# Sums are taken in whole numbers of 64 bits, 61 of them for the sum of all, without a sign.
_BITS = 61.0
# A power of 2 that float32 holds, as it does its inverse: of zeros alone there is no logarithm.
_MOST_BITS = 126.0


def are_quick() -> bool:
    """Whether counting by cell takes about as long as reading the numbers; asked for a graph.

    TensorFlow has an operation for it that uses all cores. On a GPU that operation knows no whole
    numbers of 64 bits, and Keras' `segment_sum`, which is used elsewhere, takes as long as twenty
    passes over the numbers on a CPU.
    """
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return not tf.config.list_logical_devices("GPU")


def jax_is_on_cpu() -> bool:
    """Whether JAX computes, on a CPU, where XLA is slow with what exceeds the cache."""
    if keras.backend.backend() != "jax":
        return False
    import jax

    return jax.default_backend() == "cpu"


def counts_in_cells(cells: Tensor, size: Tensor | int) -> Tensor:
    """How many of the `cells` are each of 0 … size − 1, int32.

    Args:
        cells: int32 `[N]`, or `[a, c]` to be counted row by row, all of them at least 0 and below
            `size`.
        size: of the result, `[size]` or `[a, size]`.
    """
    if are_quick():
        return _summed(cells, size, ops.zeros((0,), "int32"))
    return _by_rows(ops.ones_like(cells), cells, size)


def sums_in_cells(
    values: Tensor, cells: Tensor, size: Tensor | int, largest: float | None = None
) -> Tensor:
    """The sum of the `values` in each of the `cells`; arguments otherwise as `counts_in_cells`.

    Where it is quick, in whole numbers: so it is the same in whatever order the cores add up, and
    more exact than a sum of floats. Where a value is NaN or infinite, every sum is NaN.

    Args:
        largest: what no value exceeds, nor falls below its negative, where that is known: two
            passes less. Values that are NaN then make some number.

    Returns:
        Of the dtype of `values`; constant for the gradient.
    """
    values = ops.stop_gradient(values)
    if not are_quick():
        return _by_rows(values, cells, size)
    if largest is None:
        total = ops.sum(ops.absolute(values))
    else:
        total = largest * ops.cast(ops.maximum(ops.size(values), 1), values.dtype)
    bits = at_most(_BITS - ops.log2(total), _MOST_BITS)
    unit = ops.power(ops.cast(2.0, values.dtype), ops.floor(bits))
    found = _summed(cells, size, ops.cast(values * unit, "int64"))
    # Whole numbers know no NaN; 0 times infinity is one, and so is what it is added to.
    return ops.cast(found, values.dtype) / unit + 0.0 * total


def look_up(table: Tensor, places: Tensor) -> Tensor:
    """The entries of a `table` `[m]` at int32 `places` of any shape, all of them within it.

    Not `ops.take`: on TensorFlow that first counts negative places from the end, in three passes,
    and TensorFlow's own `gather` takes nearly twice as long as its `gather_nd`.
    """
    if keras.backend.backend() != "tensorflow":
        return ops.take(table, places)
    import tensorflow as tf

    return tf.gather_nd(table, places[..., None])


def _summed(cells: Tensor, size: Tensor | int, weights: Tensor) -> Tensor:
    import tensorflow as tf

    return tf.raw_ops.DenseBincount(
        input=cells, size=ops.cast(size, "int32"), weights=weights, binary_output=False
    )


def _by_rows(values: Tensor, cells: Tensor, size: Tensor | int) -> Tensor:
    if len(cells.shape) == 1:
        return ops.segment_sum(values, cells, size)
    rows = ops.shape(cells)[0]
    cells = cells + ops.arange(rows, dtype="int32")[:, None] * size
    flat = ops.segment_sum(ops.reshape(values, (-1,)), ops.reshape(cells, (-1,)), rows * size)
    return ops.reshape(flat, (rows, size))
