"""Positives and negatives of a batch, and the nearest and the farthest of them."""

from keras import ops

from keras_dml._common.types import Tensor

# Distance of an anchor without positives (negatives) to the nearest (farthest) example.
_BEYOND = 1e-6


def masks(
    query_labels: Tensor, key_labels: Tensor, valid: Tensor | bool = True
) -> tuple[Tensor, Tensor]:
    """Return which valid keys are positives and negatives of each query, bool `[q, k]` each.

    A query is neither to itself, the key of the same number.
    """
    labels, others = ops.reshape(query_labels, (-1, 1)), ops.reshape(key_labels, (1, -1))
    same = ops.equal(labels, ops.cast(others, labels.dtype))
    rows, columns = ops.arange(ops.shape(same)[0]), ops.arange(ops.shape(same)[1])
    positive = ops.logical_and(same, rows[:, None] != columns[None, :])
    return ops.logical_and(positive, valid), ops.logical_and(ops.logical_not(same), valid)


def farthest(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest value `[q, 1]` under a mask, and its column `[q]`.

    Without such a value: slightly less than the smallest value of the row.
    """
    least = ops.min(values, axis=1, keepdims=True) - _BEYOND
    found = ops.where(mask, values, least)
    return ops.max(found, axis=1, keepdims=True), ops.argmax(found, axis=1)


def nearest(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest value `[q, 1]` under a mask, and its column `[q]`."""
    largest, column = farthest(-values, mask)
    return -largest, column


def positives(apart: Tensor, positive: Tensor, strategy: str) -> tuple[Tensor, Tensor]:
    """Return the distance `[q, 1]` and the column `[q]` of one positive of each query.

    `"hard"` is the farthest positive. Other strategies choose the nearest.
    """
    return (farthest if strategy == "hard" else nearest)(apart, positive)


def negatives(
    apart: Tensor, positive: Tensor, negative: Tensor, strategy: str
) -> tuple[Tensor, Tensor]:
    """Return the distance `[q, 1]` and the column `[q]` of one negative of each query.

    `"hard"` is the nearest negative, and `"easy"` the farthest. `"semi-hard"` is the nearest one
    farther than the farthest positive, or else the farthest negative.
    """
    if strategy == "semi-hard":
        _, last = farthest(apart, negative)
        is_last = ops.equal(last[:, None], ops.arange(ops.shape(apart)[1], dtype=last.dtype))
        negative = ops.where(apart > farthest(apart, positive)[0], negative, is_last)
    return (farthest if strategy == "easy" else nearest)(apart, negative)
