"""Matrix products of embeddings, in float32 where a GPU would take fewer digits by itself.

NVIDIA's GPUs since 2020 multiply float32 matrices as "TF32", of whose 24 significant bits 11 are
left, and TensorFlow and JAX let them. That suits a network's layers. A similarity is the difference
between two images: at 11 bits a tenth of the squared distance of a close pair is noise, and of a
temperature of 1/50 the exponent.
"""

import keras
from keras import ops
from keras.backend import standardize_dtype

from keras_dml.gradients import Backward, with_gradient
from keras_dml.types import Tensor

__all__ = ["cumsum", "matmul"]

# Of the 23 bits that a float32 number keeps behind its first, those that TF32 has no place for.
_LEFT_OUT = 13


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """`x y`, as exact as float32 is, or in float64.

    On TensorFlow, where a GPU rounds to TF32, a factor is the sum of two that TF32 can hold,
    `x = x₁ + x₂`, and the product `x₁ y₁ + (x₁ y₂ + x₂ y₁)`, with a relative error of about 2⁻²³ in
    place of 2⁻¹¹. On JAX each product says that it is not to be rounded. PyTorch rounds only for
    those who ask for it (`torch.set_float32_matmul_precision`).

    Args:
        x: `[..., a, d]`, float32 or float64.
        y: `[..., d, b]`, of as many axes and the same dtype; nothing is broadcast.

    Returns:
        `[..., a, b]`; differentiable twice.

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


def cumsum(x: Tensor) -> Tensor:
    """Compute the running sums of a tensor along its last axis, in its dtype."""
    if keras.backend.backend() == "torch":
        import torch

        return torch.cumsum(ops.convert_to_tensor(x), dim=-1)  # ops.cumsum is float32 of float64
    return ops.cumsum(x, axis=-1)


def _is_rounded() -> bool:
    """Whether TensorFlow may round factors to TF32; asked when a graph is made."""
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
    """The nearest numbers of 11 significant bits, and what is left: exactly `x` together."""
    import tensorflow as tf

    # By bits: differences of large multiples would overflow, and a compiler may simplify them.
    bits = tf.bitcast(x, tf.int32) + (1 << _LEFT_OUT - 1)
    high = tf.bitcast(tf.bitwise.bitwise_and(bits, -(1 << _LEFT_OUT)), tf.float32)
    finite = tf.math.is_finite(x)
    return tf.where(finite, high, x), tf.where(finite, x - high, 0.0)


def _product(x: Tensor, y: Tensor) -> Tensor:
    """As the device multiplies."""
    return ops.matmul(x, y)
