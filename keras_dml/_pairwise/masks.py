"""Masks of the positives and the negatives of each anchor."""

from typing import Any, TypeAlias

from keras import ops

from keras_dml._common.errors import ArgumentError
from keras_dml._common.types import Tensor

Masks: TypeAlias = tuple[Tensor, Tensor]
"""Bool masks `[a, c]` of the positives and of the negatives."""


def checked_masks(
    name: str, source: object, masks: Any, shape: tuple[int | None, int | None]
) -> Masks:
    """Return two masks as bool tensors, or raise `ValueError`.

    Args:
        name: Name of the argument that is the source.
        source: The relation or strategy that returned the masks.
        masks: Its result.
        shape: Numbers of anchors and candidates. None for an unknown number.
    """
    received = type(masks).__name__
    if isinstance(masks, (list, tuple)) and len(masks) == 2:
        positive, negative = (ops.cast(ops.convert_to_tensor(mask), "bool") for mask in masks)
        shapes = tuple(positive.shape), tuple(negative.shape)
        if all(_may_be(each, shape) for each in shapes):
            return positive, negative
        received = f"masks of shapes {shapes[0]} and {shapes[1]}"
    raise ArgumentError(
        f"{name} must return two masks, of the positives and of the negatives, each of shape "
        f"{shape}, but got {received} from {source!r}. A mask has a row for each anchor and a "
        "column for each candidate."
    )


def _may_be(shape: tuple[int | None, ...], other: tuple[int | None, ...]) -> bool:
    return len(shape) == len(other) and all(
        None in sizes or sizes[0] == sizes[1] for sizes in zip(shape, other)
    )


def same_class(class_ids: Tensor, candidate_ids: Tensor) -> Masks:
    """Return the masks of the pairs with equal and with unequal class ids, bool `[a, c]`."""
    same = ops.equal(class_ids[:, None], candidate_ids[None, :])
    return same, ops.logical_not(same)
