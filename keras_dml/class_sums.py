"""Sums of a batch's embeddings over each class, without knowing how many classes it has."""

import dataclasses
from collections.abc import Callable
from typing import Any

from keras import ops

from keras_dml.distribute import gather_candidates
from keras_dml.types import Tensor


@dataclasses.dataclass(frozen=True)
class Slots:
    """The slots that a computation goes over: the first half of them, or both halves.

    What it gives has the same shapes either way if what has a slot a column (or a row) is split.
    """

    number: Tensor | int
    both: bool

    def split(self, values: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """The halves of what has a slot an entry along an axis; without the second, the first."""
        return tuple(ops.split(values, 2, axis=axis)) if self.both else (values, values)

    def join(self, halves: tuple[Tensor, Tensor], axis: int) -> Tensor:
        """What was split."""
        return ops.concatenate(halves, axis=axis) if self.both else halves[0]


@dataclasses.dataclass(frozen=True)
class ClassSums:
    """The classes of the global batch, each in a slot of its own, and sums over each.

    Class ids are arbitrary numbers and shapes must not depend on their values, so there are as many
    slots as candidates, c (rounded up to an even number): those of the classes, in the order of
    their ids, then empty ones. Where classes have two images or more on average, the first half of
    the slots holds them all, and `over_slots` leaves the others out. Finding slots costs one sort
    of c numbers, sums O(c·d), and neither has a matrix of pairs.

    Attributes:
        anchors: embeddings of this replica `[a, d]`.
        candidates: embeddings of all replicas `[c, d]`; on one device the very tensor `anchors`.
        slots: slot of each candidate's class `[c]`, int32.
        own: slot of each anchor's class `[a]`, int32.
        num_classes: how many classes there are, a scalar, int32.
        half: half of the number of slots.
    """

    anchors: Tensor
    candidates: Tensor
    slots: Tensor
    own: Tensor
    num_classes: Tensor
    half: Tensor | int

    @classmethod
    def of_batch(cls, class_ids: Tensor, embeddings: Tensor) -> "ClassSums":
        """The classes of class ids `[n]` and embeddings `[n, d]` of all replicas."""
        candidates, _ = gather_candidates(embeddings)
        candidate_ids, _ = gather_candidates(class_ids)
        ordered = ops.sort(candidate_ids)
        begins = ops.cast(ops.not_equal(ordered[1:], ordered[:-1]), "int32")
        numbers = ops.pad(ops.cumsum(begins), [[1, 0]])

        def slots_of(ids: Tensor) -> Tensor:
            return ops.take(numbers, ops.searchsorted(ordered, ids))

        slots = slots_of(candidate_ids)
        return cls(
            anchors=embeddings,
            candidates=candidates,
            slots=slots,
            own=slots if candidate_ids is class_ids else slots_of(class_ids),
            num_classes=numbers[-1] + 1,
            half=(ops.shape(candidates)[0] + 1) // 2,
        )

    def over_slots(self, compute: Callable[[Slots], Any]) -> Any:
        """`compute(slots)`, tensors whose shapes must not depend on the slots that it is given."""
        return ops.cond(
            self.num_classes <= self.half,
            lambda: compute(Slots(self.half, both=False)),
            lambda: compute(Slots(2 * self.half, both=True)),
        )

    def sums(self, values: Tensor) -> Tensor:
        """Sum over each slot of the candidates' `values` `[c, ...]`; 0 in an empty slot."""
        return ops.segment_sum(values, self.slots, num_segments=2 * self.half)

    def sums_of_anchors(self, values: Tensor) -> Tensor:
        """Sum over each slot of this replica's `values` `[a, ...]`; 0 in an empty slot."""
        return ops.segment_sum(values, self.own, num_segments=2 * self.half)

    def batch_size(self) -> Tensor:
        """How many images the global batch has, as a number of the embeddings' dtype."""
        return ops.cast(ops.shape(self.candidates)[0], self.candidates.dtype)

    def of_anchors(self, values: Tensor) -> Tensor:
        """The rows of `values`, a row for each slot, for each anchor's own class."""
        return ops.take(values, self.own, axis=0)

    def of_candidates(self, values: Tensor) -> Tensor:
        """The rows of `values`, a row for each slot, for each candidate's class."""
        return ops.take(values, self.slots, axis=0)
