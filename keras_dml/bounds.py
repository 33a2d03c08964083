"""The larger and the smaller of a tensor and a number, in the tensor's dtype."""

from keras import ops

from keras_dml.types import Tensor

__all__ = ["at_least", "at_most"]

# Of a tensor and a number of Python's Keras makes, on JAX where floatx is bfloat16, a float32 of an
# int32, which is no place to look up, and a float64 of a float32 where there is any.


def at_least(numbers: Tensor, least: Tensor | float) -> Tensor:
    """The `numbers`, and `least` in place of those below it.

    Examples:
        >>> np.array(at_least(keras.ops.convert_to_tensor([1, 5]), 3))
        array([3, 5], dtype=int32)
    """
    return ops.maximum(numbers, ops.convert_to_tensor(least, dtype=numbers.dtype))


def at_most(numbers: Tensor, largest: Tensor | float) -> Tensor:
    """The `numbers`, and `largest` in place of those above it.

    Examples:
        >>> np.array(at_most(keras.ops.convert_to_tensor([1, 5]), 3))
        array([1, 3], dtype=int32)
    """
    return ops.minimum(numbers, ops.convert_to_tensor(largest, dtype=numbers.dtype))
