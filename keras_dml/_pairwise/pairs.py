"""The pairs of a batch: the embeddings that a loss compares, and the masks of both kinds."""

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

from keras import ops

from keras_dml._backend.replicas import gather_candidates
from keras_dml._common.types import Tensor
from keras_dml._pairwise.distances import safe_sqrt, squared_distances
from keras_dml._pairwise.matmul import matmul

__all__ = ["Compare", "Memory", "Pairs", "same_class"]

Compare: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""A function of the labels of anchors and candidates that returns the masks of a relation."""


def same_class(class_ids: Tensor, candidate_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return where two class ids are equal, and where they differ, bool `[a, c]` each."""
    same = ops.equal(class_ids[:, None], candidate_ids[None, :])
    return same, ops.logical_not(same)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Rows of earlier batches and of this one, which are candidates without a gradient.

    Attributes:
        embeddings: `[m, d]`, as the model returned them.
        labels: Class ids `[m]`, integers, or the labels of a relation, m rows.
        filled: Bool `[m]`, the slots that hold a row. Other slots are not candidates.
        own: int `[a]`, the slot of each anchor's copy, which is neither its positive nor its
            negative. −1 for an anchor without a copy.
    """

    embeddings: Tensor
    labels: Tensor
    filled: Tensor
    own: Tensor

    def prefix(self, length: int) -> "Memory":
        """Return the memory with the first `length` dimensions of each embedding."""
        return dataclasses.replace(self, embeddings=self.embeddings[:, :length])


@dataclasses.dataclass(frozen=True)
class Pairs:
    """The pairs of a batch: anchors of this replica, candidates of all replicas or of a memory.

    A loss over pairs receives them in `compute_pair_parts` (`keras_dml.losses.PairLoss`). All
    methods are differentiable in the embeddings.

    Examples:
        >>> labels = keras.ops.convert_to_tensor([0, 0, 1])
        >>> pairs = Pairs.of_batch(labels, keras.ops.eye(3))
        >>> np.array(pairs.positive)
        array([[False,  True, False],
               [ True, False, False],
               [False, False, False]])
        >>> np.array(pairs.similarities())[0]
        array([1., 0., 0.], dtype=float32)

    Attributes:
        anchors: Embeddings `[a, d]`, of unit length unless the loss sets `normalize` to False.
        candidates: Embeddings `[c, d]`. On one device the same tensor as `anchors`.
        positive: Bool `[a, c]`, another image of the anchor's class.
        negative: Bool `[a, c]`, an image of another class.
        itself: Bool `[a, c]`, the anchor itself.
    """

    anchors: Tensor
    candidates: Tensor
    positive: Tensor
    negative: Tensor
    itself: Tensor

    @classmethod
    def of_batch(cls, labels: Tensor, embeddings: Tensor, compare: Compare = same_class) -> "Pairs":
        """Pair labels (n rows) and embeddings `[n, d]` with those of all replicas."""
        candidates, first_row = gather_candidates(embeddings)
        candidate_labels, _ = gather_candidates(labels)
        rows = ops.arange(ops.shape(embeddings)[0], dtype="int32") + first_row
        columns = ops.arange(ops.shape(candidates)[0], dtype="int32")
        itself = ops.equal(rows[:, None], columns[None, :])
        positive, negative = compare(labels, candidate_labels)
        other = ops.logical_not(itself)
        return cls(
            anchors=embeddings,
            candidates=candidates,
            positive=ops.logical_and(positive, other),
            negative=ops.logical_and(negative, other),
            itself=itself,
        )

    @classmethod
    def of_memory(
        cls, labels: Tensor, embeddings: Tensor, memory: Memory, compare: Compare = same_class
    ) -> "Pairs":
        """Pair labels (n rows) and embeddings `[n, d]` with the rows of a memory."""
        # A memory stores whole numbers, whatever dtype the class ids have.
        labels = ops.cast(labels, memory.labels.dtype)
        columns = ops.arange(ops.shape(memory.embeddings)[0], dtype=memory.own.dtype)
        itself = ops.equal(memory.own[:, None], columns[None, :])
        other = ops.logical_and(memory.filled[None, :], ops.logical_not(itself))
        positive, negative = compare(labels, memory.labels)
        return cls(
            anchors=embeddings,
            candidates=memory.embeddings,
            positive=ops.logical_and(positive, other),
            negative=ops.logical_and(negative, other),
            itself=itself,
        )

    def similarities(self) -> Tensor:
        """Compute the inner products `S_ij = a_i · c_j`, `[a, c]`."""
        return matmul(self.anchors, ops.transpose(self.candidates))

    def squared_distances(self) -> Tensor:
        """Compute `D_ij² = ‖a_i − c_j‖²`, `[a, c]`, exact for close pairs."""
        return squared_distances(self.anchors, self.candidates)

    def distances(self) -> Tensor:
        """Compute `D_ij = ‖a_i − c_j‖`, `[a, c]`. The gradient of the distance 0 is 0."""
        return safe_sqrt(self.squared_distances())

    def others(self) -> Tensor:
        """Return the mask of positives and negatives, bool `[a, c]`."""
        return ops.logical_or(self.positive, self.negative)

    def have_positives(self) -> Tensor:
        """Return which anchors have a positive, bool `[a]`."""
        return ops.any(self.positive, axis=-1)

    def have_negatives(self) -> Tensor:
        """Return which anchors have a negative, bool `[a]`."""
        return ops.any(self.negative, axis=-1)

    def matched(self) -> Tensor:
        """Return the positives of the anchors that have a negative, bool `[a, c]`."""
        return ops.logical_and(self.positive, self.have_negatives()[:, None])
