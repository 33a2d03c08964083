"""Sums, logarithms of sums, and means over some of the pairs of each anchor."""

import keras
from keras import ops

from keras_dml._backend.replicas import gather_candidates
from keras_dml._common.types import Tensor

__all__ = [
    "count",
    "cumsum",
    "log_add_exp",
    "log_one_plus_sum_exp",
    "log_sum_exp",
    "masked_sum",
    "maximum",
    "mean",
    "mean_over_anchors",
    "mean_over_pairs",
    "minimum",
    "pair_means",
    "segment_sum",
]

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


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum the `values` under a mask over the last axis."""
    return ops.sum(ops.where(mask, values, 0.0), axis=-1)


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


def mean(values: Tensor) -> Tensor:
    """Average all numbers of a tensor in its dtype. `ops.mean` computes in float32 on JAX."""
    return ops.sum(values) / ops.cast(ops.size(values), values.dtype)


def mean_over_anchors(values: Tensor, kept: Tensor) -> Tensor:
    """Scale values `[n]` so that Keras' mean over all anchors is the mean over the kept ones.

    Kept anchors are counted over all replicas. The others become 0.
    """
    kept = ops.cast(kept, values.dtype)
    everywhere, _ = gather_candidates(kept)
    number = maximum(ops.sum(everywhere), 1.0)
    return ops.where(kept > 0, values * (_size(everywhere) / number), 0.0)


def mean_over_pairs(sums: Tensor, weights: Tensor) -> Tensor:
    """Scale sums `[n]` so that Keras' mean over anchors is the mean over the pairs of all replicas.

    Args:
        sums: Each anchor's sum over its pairs, `[n]`.
        weights: Each anchor's number (or weight) of pairs, `[n]`.

    Returns:
        `sums · n / Σ weights`, with n and the sum over all replicas. 0 without pairs.
    """
    everywhere, _ = gather_candidates(weights)
    total = ops.sum(everywhere)
    scale = ops.where(total > 0, _size(everywhere) / ops.where(total > 0, total, 1.0), 0.0)
    return sums * scale


def pair_means(values: Tensor, kept: Tensor) -> Tensor:
    """Return values `[n]` whose Keras mean is the mean of `values` `[a, c]` over the kept pairs."""
    return mean_over_pairs(masked_sum(values, kept), count(kept, values.dtype))


def _size(values: Tensor) -> Tensor:
    return ops.cast(ops.shape(values)[0], values.dtype)


def cumsum(x: Tensor) -> Tensor:
    """Compute the running sums of a tensor along its last axis, in its dtype."""
    if keras.backend.backend() == "torch":
        import torch

        return torch.cumsum(ops.convert_to_tensor(x), dim=-1)  # ops.cumsum is float32 of float64
    return ops.cumsum(x, axis=-1)


def segment_sum(x: Tensor, segments: Tensor, number: Tensor | int) -> Tensor:
    """Sum the rows of `x` `[n, ...]` in each of a number of segments, in its dtype."""
    if keras.backend.backend() == "torch":  # ops.segment_sum is float32 of float64
        return x.new_zeros((number, *x.shape[1:])).index_add(0, segments, x)  # type: ignore[attr-defined]
    return ops.segment_sum(x, segments, number)
