"""Sums, logarithms, and matrix products that keep the dtype and the digits of their inputs.

NVIDIA GPUs since 2020 can multiply float32 matrices as "TF32", which keeps 11 of the 24 significant
bits. TensorFlow and JAX allow it. That suits a network's layers. A similarity, however, is the
difference between two images. With 11 bits, a tenth of the squared distance of a close pair is
noise, and so is a tenth of the exponent at a temperature of 1/50.
"""

import keras
from keras import ops
from keras.backend import standardize_dtype

from keras_dml._backend.gradients import with_gradient
from keras_dml._common.types import Tensor

# Stands for minus infinity in exponents, without its NaN gradients.
_LEFT_OUT = -1e30


def maximum(numbers: Tensor, least: Tensor | float) -> Tensor:
    """Return `max(numbers, least)` in the dtype of `numbers`.

    `ops.maximum` changes dtypes: float64 becomes float32 on PyTorch, and int32 becomes float32 on
    JAX if floatx is bfloat16.
    """
    least = ops.convert_to_tensor(least, dtype=numbers.dtype)
    return ops.where(numbers < least, least, numbers)


def minimum(numbers: Tensor, most: Tensor | float) -> Tensor:
    """Return `min(numbers, most)` in the dtype of `numbers`."""
    most = ops.convert_to_tensor(most, dtype=numbers.dtype)
    return ops.where(numbers > most, most, numbers)


def count(mask: Tensor, dtype: str) -> Tensor:
    """Count the true entries of a mask along the last axis, as `dtype`."""
    return ops.sum(ops.cast(mask, dtype), axis=-1)


def mean(values: Tensor) -> Tensor:
    """Average all numbers of a tensor in its dtype. `ops.mean` computes in float32 on JAX."""
    return ops.sum(values) / ops.cast(ops.size(values), values.dtype)


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum the `values` under a mask over the last axis."""
    return ops.sum(ops.where(mask, values, 0.0), axis=-1)


def masked_max(values: Tensor, mask: Tensor) -> Tensor:
    """Return the largest value under a mask in each row, `[a, 1]`. Minus infinity for no mask."""
    return ops.max(ops.where(mask, values, -float("inf")), axis=-1, keepdims=True)


def masked_min(values: Tensor, mask: Tensor) -> Tensor:
    """Return the smallest value under a mask in each row, `[a, 1]`. Infinity for no mask."""
    return ops.min(ops.where(mask, values, float("inf")), axis=-1, keepdims=True)


def log_sum_exp(exponents: Tensor, mask: Tensor) -> Tensor:
    """Compute `log Σ exp(e)` under a mask over the last axis, and 0 for an empty mask."""
    return ops.where(ops.any(mask, axis=-1), _log_sum_exp(exponents, mask), 0.0)


def log_one_plus_sum_exp(exponents: Tensor, mask: Tensor) -> Tensor:
    """Compute `log(1 + Σ exp(e))` under a mask over the last axis, and 0 for an empty mask."""
    return ops.softplus(_log_sum_exp(exponents, mask))


def _log_sum_exp(exponents: Tensor, mask: Tensor) -> Tensor:
    return ops.logsumexp(ops.where(mask, exponents, _LEFT_OUT), axis=-1)


def log_add_exp(a: Tensor, b: Tensor) -> Tensor:
    """Compute `log(exp(a) + exp(b))` in the dtype of `a`. `ops.logaddexp` is float32 on JAX."""
    return a + ops.softplus(b - a)


def cumsum(x: Tensor) -> Tensor:
    """Compute the running sums of a tensor along its last axis, in its dtype."""
    if keras.backend.backend() == "torch":
        import torch

        return torch.cumsum(ops.convert_to_tensor(x), dim=-1)  # ops.cumsum is float32 of float64
    return ops.cumsum(x, axis=-1)


def segment_sum(x: Tensor, segments: Tensor, number: Tensor | int) -> Tensor:
    """Sum the rows of `x` `[n, ...]` that have the same segment, 0 … number − 1, in its dtype."""
    if keras.backend.backend() == "torch":  # ops.segment_sum is float32 of float64
        return x.new_zeros((number, *x.shape[1:])).index_add(0, segments, x)  # type: ignore[attr-defined]
    return ops.segment_sum(x, segments, number)


def places_in(in_order: Tensor, values: Tensor) -> Tensor:
    """Return how many entries of a sorted vector are at most each of `values`, int32.

    `searchsorted(side="right")` by bisection. XLA would build a table of all comparisons for
    TensorFlow's operation.
    """
    size = ops.convert_to_tensor(ops.shape(in_order)[0], "int32")
    low = ops.zeros_like(values, dtype="int32")

    def halve(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        middle = (low + high) // 2
        entry = ops.take(in_order, ops.minimum(middle, size - 1))
        passed = ops.logical_and(low < high, entry <= values)
        return ops.where(passed, middle + 1, low), ops.where(passed, high, middle)

    low, _ = ops.while_loop(lambda low, high: ops.any(low < high), halve, (low, low + size))
    return low


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """Compute `x y` in full float32 or in float64.

    On TensorFlow, if a GPU rounds to TF32, the product is computed in float64. On JAX, each product
    requests full precision. PyTorch rounds only on request (`torch.set_float32_matmul_precision`).

    Args:
        x: `[..., a, d]`, float32 or float64.
        y: `[..., d, b]`, with the same number of axes and dtype, without broadcasting.

    Returns:
        `[..., a, b]`, which is differentiable twice.
    """
    left, right = ops.convert_to_tensor(x), ops.convert_to_tensor(y)
    backend = keras.backend.backend()
    if backend == "jax":
        import jax.numpy as jnp

        return jnp.matmul(left, right, precision="highest")
    if backend == "torch":
        import torch

        return torch.matmul(left, right)  # ops.matmul computes float64 in float32
    if standardize_dtype(left.dtype) == "float32" and _rounds_to_tf32():
        left, right = ops.cast(left, "float64"), ops.cast(right, "float64")
        return ops.cast(ops.matmul(left, right), "float32")
    return ops.matmul(left, right)


def gram(x: Tensor) -> Tensor:
    """Compute the inner products `x xᵀ` `[n, n]` of the rows of `x` `[n, d]`.

    On TensorFlow, the gradient takes one product instead of two: `(u + uᵀ) x` for the upstream u.
    The other backends would lose forward-mode derivatives.
    """
    if keras.backend.backend() == "tensorflow":
        return _gram(x)
    return _product_with_itself(x)


def _product_with_itself(x: Tensor) -> Tensor:
    return matmul(x, ops.transpose(x))


def _gradient_of_gram(upstream: Tensor, x: Tensor) -> Tensor:
    return matmul(upstream + ops.transpose(upstream), x)


_gram = with_gradient(_product_with_itself, _gradient_of_gram)


def row_lengths(x: Tensor, epsilon: float = 0.0) -> Tensor:
    """Compute the lengths `[n, 1]` of the rows of `x` `[n, d]`, as divisors.

    Equal rows have equal lengths, because no rounding depends on a row's position. TensorFlow
    replaces a division by a root with `rsqrt`, and XLA fuses a product with a sum. Both round
    differently at the end of a tensor. The bounds 0 and 1e-37, which change no result, prevent
    that.

    Args:
        x: `[n, d]`.
        epsilon: The smallest squared length.
    """
    squares = ops.sum(maximum(ops.square(x), 1e-37), axis=-1, keepdims=True)
    return maximum(ops.sqrt(maximum(squares, epsilon)), 0.0)


def are_finite(embeddings: Tensor) -> Tensor:
    """Return whether all numbers of embeddings `[n, d]` are finite, as a bool tensor."""
    return ops.all(ops.isfinite(embeddings))


def _rounds_to_tf32() -> bool:
    """Return whether TensorFlow may round factors to TF32. Called when a graph is built."""
    import tensorflow as tf

    allowed = tf.config.experimental.tensor_float_32_execution_enabled()
    return allowed and bool(tf.config.list_physical_devices("GPU"))
