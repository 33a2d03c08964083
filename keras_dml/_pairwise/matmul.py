"""Matrix products of embeddings, in full float32 where a GPU would round to fewer digits.

NVIDIA GPUs since 2020 can multiply float32 matrices as "TF32", which keeps 11 of the 24 significant
bits. TensorFlow and JAX allow it. That suits a network's layers. A similarity, however, is the
difference between two images. With 11 bits, a tenth of the squared distance of a close pair is
noise, and so is a tenth of the exponent at a temperature of 1/50.
"""

import keras
from keras import ops
from keras.backend import standardize_dtype

from keras_dml._backend.gradients import Backward, with_gradient
from keras_dml._common.types import Tensor

__all__ = ["matmul"]

# Number of the 23 mantissa bits of a float32 that TF32 drops.
_LEFT_OUT = 13


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """Compute `x y` in full float32 or in float64.

    On TensorFlow, if a GPU rounds to TF32, each factor is the sum of two TF32 numbers,
    `x = x₁ + x₂`, and the product is `x₁ y₁ + (x₁ y₂ + x₂ y₁)`, with a relative error of about 2⁻²³
    instead of 2⁻¹¹. On JAX, each product requests full precision. PyTorch rounds only on request
    (`torch.set_float32_matmul_precision`).

    Args:
        x: `[..., a, d]`, float32 or float64.
        y: `[..., d, b]`, with the same number of axes and dtype, without broadcasting.

    Returns:
        `[..., a, b]`, which is differentiable twice.

    Reference: Markidis et al. 2018, "NVIDIA Tensor Core programmability, performance and
    precision" (the split into parts).
    """
    backend = keras.backend.backend()
    if backend == "jax":
        import jax.numpy as jnp

        return jnp.matmul(ops.convert_to_tensor(x), ops.convert_to_tensor(y), precision="highest")
    if backend == "torch":
        import torch

        # ops.matmul computes float64 in float32.
        return torch.matmul(ops.convert_to_tensor(x), ops.convert_to_tensor(y))
    if backend == "tensorflow" and standardize_dtype(x.dtype) == "float32" and _is_rounded():
        return _in_parts(ops.convert_to_tensor(x), ops.convert_to_tensor(y))
    return _product(x, y)


def _is_rounded() -> bool:
    """Return whether TensorFlow may round factors to TF32. Called when a graph is built."""
    import tensorflow as tf

    allowed = tf.config.experimental.tensor_float_32_execution_enabled()
    return allowed and bool(tf.config.list_physical_devices("GPU"))


@with_gradient
def _in_parts(x: Tensor, y: Tensor) -> tuple[Tensor, Backward]:
    def backward(upstream: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        to_x = _in_parts(upstream, ops.swapaxes(y, -1, -2))
        return to_x, _in_parts(ops.swapaxes(x, -1, -2), upstream)

    return _sum_of_parts(x, y), backward


def _sum_of_parts(x: Tensor, y: Tensor) -> Tensor:
    (x_high, x_low), (y_high, y_low) = _parts(x), _parts(y)
    small = _product(x_high, y_low) + _product(x_low, y_high)
    return _product(x_high, y_high) + small


def _parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """Split `x` into the nearest numbers with 11 significant bits and the exact remainder."""
    import tensorflow as tf

    # Computed on bits, because differences of large multiples would overflow, and a compiler may
    # simplify them.
    bits = tf.bitcast(x, tf.int32) + (1 << _LEFT_OUT - 1)
    high = tf.bitcast(tf.bitwise.bitwise_and(bits, -(1 << _LEFT_OUT)), tf.float32)
    finite = tf.math.is_finite(x)
    return tf.where(finite, high, x), tf.where(finite, x - high, 0.0)


def _product(x: Tensor, y: Tensor) -> Tensor:
    """Multiply with the device's default precision."""
    return ops.matmul(x, y)
