"""Sums of a batch's embeddings over each class, without knowing how many classes it has."""

import dataclasses

from keras import ops

from keras_dml.distribute import gather_candidates
from keras_dml.types import Tensor


@dataclasses.dataclass(frozen=True)
class ClassSums:
    """The classes of the global batch, each in a slot of its own, and the sums of their embeddings.

    Class ids are arbitrary numbers and shapes must not depend on their values, so there are as many
    slots as candidates, c, and most of them stay empty: a class sits in the slot whose number is
    the count of candidates with a smaller id. Finding slots and sums costs one sort of c numbers
    and O(c·d), with no matrix of pairs.

    Attributes:
        anchors: embeddings of this replica `[a, d]`.
        candidates: embeddings of all replicas `[c, d]`; on one device the very tensor `anchors`.
        sums: sum of each slot's candidates `[c, d]`; 0 in an empty slot.
        sizes: number of each slot's candidates `[c]`; 0 in an empty slot.
        own: slot of each anchor's class `[a]`, int32.
    """

    anchors: Tensor
    candidates: Tensor
    sums: Tensor
    sizes: Tensor
    own: Tensor

    @classmethod
    def of_batch(cls, class_ids: Tensor, embeddings: Tensor) -> "ClassSums":
        """Sums of class ids `[n]` and embeddings `[n, d]` over all replicas."""
        candidates, _ = gather_candidates(embeddings)
        candidate_ids, _ = gather_candidates(class_ids)
        ordered = ops.sort(candidate_ids)
        slots = ops.cast(ops.searchsorted(ordered, candidate_ids), "int32")
        num_slots = ops.shape(candidates)[0]
        ones = ops.ones_like(candidate_ids, dtype=embeddings.dtype)
        return cls(
            anchors=embeddings,
            candidates=candidates,
            sums=ops.segment_sum(candidates, slots, num_segments=num_slots),
            sizes=ops.segment_sum(ones, slots, num_segments=num_slots),
            own=ops.cast(ops.searchsorted(ordered, class_ids), "int32"),
        )

    @property
    def present(self) -> Tensor:
        """Whether a slot holds a class, bool `[c]`."""
        return self.sizes > 0

    def batch_size(self) -> Tensor:
        """How many images the global batch has, as a number of the embeddings' dtype."""
        return ops.cast(ops.shape(self.candidates)[0], self.sums.dtype)

    def of_anchors(self, values: Tensor) -> Tensor:
        """The rows of `values` `[c, ...]` (or its entries `[c]`) for each anchor's own class."""
        return ops.take(values, self.own, axis=0)
