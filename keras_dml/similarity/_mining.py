"""Positives and negatives of a batch, and the nearest and the farthest of them."""

from keras import ops

from keras_dml._common.types import Tensor

# Distance of an anchor without positives (negatives) to the nearest (farthest) example.
_BEYOND = 1e-6


def masks(
    query_labels: Tensor, key_labels: Tensor, valid: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return which keys are positives and negatives of each query, bool `[q, k]` each.

    A query is neither to itself, the key of the same number.
    """
    labels, others = ops.reshape(query_labels, (-1, 1)), ops.reshape(key_labels, (1, -1))
    same = ops.equal(labels, ops.cast(others, labels.dtype))
    positive, negative = same, ops.logical_not(same)
    rows, columns = ops.arange(ops.shape(same)[0]), ops.arange(ops.shape(same)[1])
    positive = ops.logical_and(positive, rows[:, None] != columns[None, :])
    if valid is not None:
        positive = ops.logical_and(positive, valid[None, :])
        negative = ops.logical_and(negative, valid[None, :])
    return positive, negative


def farthest(values: Tensor, mask: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the largest value `[q, 1]` under a mask, and its column `[q]`.

    Without such a value: slightly less than the smallest valid value of the row.
    """
    known = values if valid is None else ops.where(valid[None, :], values, float("inf"))
    least = ops.min(known, axis=1, keepdims=True) - _BEYOND
    found = ops.where(mask, values, least)
    return ops.max(found, axis=1, keepdims=True), ops.argmax(found, axis=1)


def nearest(values: Tensor, mask: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the smallest value `[q, 1]` under a mask, and its column `[q]`."""
    largest, column = farthest(-values, mask, valid)
    return -largest, column
