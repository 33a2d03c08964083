"""Smooth ranks of the positives in O(n²) memory, where the formula takes n³ numbers."""

from keras import ops

from keras_dml._backend.gradients import once_differentiable, with_gradient
from keras_dml._common.types import Tensor

_ADVICE = "set fused=False on the loss for its formula, which takes O(n³) memory"


def smooth_ranks(
    similarities: Tensor, positive: Tensor, negative: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `keras_dml._pairwise.ranks.smooth_ranks`, one positive of each query at a time.

    The result has the positives of each query first, in the order of their columns, and not in the
    columns themselves. Time is O(n² p) for p positives of one query at most.

    Returns:
        r⁺, r − r⁺, and which entries are positives, each `[a, c]`. Differentiable once.
    """
    order = ops.cast(ops.argsort(ops.cast(ops.logical_not(positive), "int32"), axis=-1), "int32")
    number = ops.sum(ops.cast(positive, "int32"), axis=-1)
    similarities = once_differentiable(similarities, _ADVICE)
    among_positives, negatives_above = ops.unstack(_ranks(similarities, order, number, negative), 2)
    return among_positives, negatives_above, _present(order, number)


def _present(order: Tensor, number: Tensor) -> Tensor:
    """Return which slots `[a, c]` have a positive."""
    return _slots(order)[None, :] < number[:, None]


def _slots(order: Tensor) -> Tensor:
    return ops.arange(ops.shape(order)[1], dtype="int32")


def _near_and_far(
    similarities: Tensor, order: Tensor, number: Tensor, negative: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the similarities of the positives, one in each slot, and of the negatives."""
    near = ops.take_along_axis(similarities, order, axis=-1)
    near = ops.where(_present(order, number), near, -float("inf"))
    return near, ops.where(negative, similarities, -float("inf"))


def _above(near: Tensor, far: Tensor, slot: Tensor) -> tuple[Tensor, Tensor]:
    """How much each positive and each negative exceeds the positive in a slot, 0 to 1."""
    own = ops.take(near, slot, axis=1)[:, None]
    own = ops.where(own > -float("inf"), own, float("inf"))
    return ops.sigmoid(near - own), ops.sigmoid(far - own)


def _ranks_of_slots(
    similarities: Tensor, order: Tensor, number: Tensor, negative: Tensor
) -> Tensor:
    """Compute r⁺ and r − r⁺, `[2, a, c]`."""
    near, far = _near_and_far(similarities, order, number, negative)
    most, slots = ops.max(number, initial=0), _slots(order)

    def add_rank(slot: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
        near_above, far_above = _above(near, far, slot)
        rank = ops.stack([0.5 + ops.sum(near_above, axis=-1), ops.sum(far_above, axis=-1)])
        return slot + 1, ops.where(slots == slot, rank[:, :, None], among)

    start = ops.zeros((), "int32"), ops.ones((2, *ops.shape(near)), dtype=near.dtype)
    return ops.while_loop(lambda slot, _: slot < most, add_rank, start)[1]


def _gradient_of_ranks(
    upstream: Tensor, similarities: Tensor, order: Tensor, number: Tensor, negative: Tensor
) -> tuple[Tensor | None, ...]:
    near, far = _near_and_far(similarities, order, number, negative)
    most, slots = ops.max(number, initial=0), _slots(order)

    def add_slopes(slot: Tensor, to_near: Tensor, to_far: Tensor) -> tuple[Tensor, ...]:
        steps = ops.unstack(ops.take(upstream, slot, axis=2)[:, :, None], 2)
        slopes = [each * (1.0 - each) * step for each, step in zip(_above(near, far, slot), steps)]
        to_own = ops.sum(slopes[0], axis=-1) + ops.sum(slopes[1], axis=-1)
        own = ops.where(slots == slot, to_own[:, None], 0.0)
        return slot + 1, to_near + slopes[0] - own, to_far + slopes[1]

    start = ops.zeros((), "int32"), ops.zeros_like(near), ops.zeros_like(far)
    _, to_near, to_far = ops.while_loop(lambda slot, *_: slot < most, add_slopes, start)
    back = ops.argsort(order, axis=-1)
    return to_far + ops.take_along_axis(to_near, back, axis=-1), None, None, None


_ranks = with_gradient(_ranks_of_slots, _gradient_of_ranks, _ADVICE)
