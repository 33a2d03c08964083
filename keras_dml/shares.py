"""`log Σ exp` beside the softmax that is its gradient, for losses with a gradient of their own."""

from keras import ops

from keras_dml.types import Tensor

# Exponents of what is left out: far below all others, and finite, so that no row is NaN.
LEFT_OUT = -1e30


def only(exponents: Tensor, mask: Tensor) -> Tensor:
    """The `exponents` that the bool `mask` keeps, `LEFT_OUT` elsewhere."""
    # A tensor: of a number Keras makes one of floatx first on PyTorch, in float16 an infinity.
    return ops.where(mask, exponents, ops.convert_to_tensor(LEFT_OUT, dtype=exponents.dtype))


def log_sum_exp_and_shares(exponents: Tensor) -> tuple[Tensor, Tensor]:
    """`log Σ exp(e)` over the last axis, without overflow, and the softmax `exp(e) / Σ exp(e)`.

    Around `LEFT_OUT` where nothing else is in a row, whose shares then mean nothing.
    """
    shares = ops.softmax(exponents, axis=-1)
    # The largest share is 1 / Σ exp(e − peak).
    return ops.max(exponents, axis=-1) - ops.log(ops.max(shares, axis=-1)), shares
