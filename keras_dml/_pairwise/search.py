"""Counts and sums of the smaller numbers in a row, for sums of hinges without n³ differences."""

import keras
from keras import ops

from keras_dml._common.types import Tensor
from keras_dml._pairwise.arithmetic import cumsum, masked_max


def below(values: Tensor, others: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Count and add, for each value, the numbers of its row that are at most as large.

    For a sum of hinges, `Σ_k relu(v_j − o_k) = number_j v_j − total_j`. Sorting the values and the
    other numbers of a row together takes O(c log c) time and O(c) memory for c of each. The table
    of their differences has c² entries.

    Args:
        values: `[a, v]`.
        others: `[a, c]`.
        mask: Bool `[a, c]`, the other numbers that count.

    Returns:
        `(number, total)`, each `[a, v]`. `total` is differentiable in `others`.
    """
    nothing = ops.zeros_like(values)
    keys = ops.concatenate([ops.where(mask, others, float("inf")), values], axis=-1)
    order = ops.argsort(ops.stop_gradient(keys), axis=-1)
    place = _inverse(order)[:, ops.shape(others)[1] :]

    def up_to(counted: Tensor) -> Tensor:
        counted = ops.concatenate([counted, nothing], axis=-1)
        running = cumsum(ops.take_along_axis(counted, order, axis=-1))
        return ops.take_along_axis(running, place, axis=-1)

    return (
        ops.stop_gradient(up_to(ops.cast(mask, values.dtype))),
        up_to(ops.where(mask, others, 0.0)),
    )


def _inverse(order: Tensor) -> Tensor:
    """Return the inverse of each row's permutation, `[a, c]`. A second sort is slow on XLA."""
    if keras.backend.backend() == "torch":
        return ops.argsort(order, axis=-1)  # ops.scatter is a Python loop there
    rows, width = ops.shape(order)
    first = width * ops.arange(rows, dtype=order.dtype)[:, None]
    places = ops.broadcast_to(ops.arange(width, dtype=order.dtype), (rows, width))
    flat = ops.scatter(
        ops.reshape(order + first, (-1, 1)), ops.reshape(places, (-1,)), (rows * width,)
    )
    return ops.reshape(flat, (rows, width))


def open_hinges(
    distances: Tensor, margin: float, others: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Add the hinges `max(0, D_ij + margin − o_k)` of each distance over the numbers of its row.

    Args:
        distances: D, `[a, v]`.
        margin: The margin of each hinge.
        others: o, `[a, c]`.
        mask: Bool `[a, c]`, the other numbers that count.

    Returns:
        The sums of `D_ij` and of `margin − o_k` over the hinges that are not 0, each `[a, v]`.
    """
    number, total = below(distances + margin, others, mask)
    return number * distances, number * margin - total


def next_larger(values: Tensor, others: Tensor, mask: Tensor) -> Tensor:
    """Find, for each value, the smallest number of its row that is strictly larger.

    Args:
        values: `[a, v]`.
        others: `[a, c]`.
        mask: Bool `[a, c]`, the other numbers that count.

    Returns:
        `[a, v]`, infinity without a larger number. Differentiable in `others`. One of several equal
        numbers has the gradient.
    """
    keys = ops.where(mask, others, float("inf"))
    order = ops.argsort(ops.stop_gradient(keys), axis=-1)
    in_order = ops.take_along_axis(keys, order, axis=-1)
    number, _ = below(values, ops.stop_gradient(others), mask)
    in_order = ops.pad(in_order, ((0, 0), (0, 1)), constant_values=float("inf"))
    return ops.take_along_axis(in_order, ops.cast(number, "int32"), axis=-1)


def semihard_negatives(distances: Tensor, negative: Tensor) -> Tensor:
    """Find the semi-hard negative of each pair.

    Args:
        distances: `[a, c]`.
        negative: Bool `[a, c]`.

    Returns:
        `[a, c]`: the distance of the nearest negative that is strictly farther than the pair or,
        if all negatives are closer, of the farthest negative. Minus infinity without negatives.

    Reference: Schroff et al., "FaceNet", CVPR 2015, 3.2; the fallback is tensorflow-addons'.
    """
    farther = next_larger(distances, distances, negative)
    return ops.where(farther < float("inf"), farther, masked_max(distances, negative))
