"""A loss whose candidates are the rows of a memory."""

from keras_dml._common.types import Parts, Tensor
from keras_dml._pairwise.pairs import Memory
from keras_dml.losses.base import EmbeddingLoss

__all__ = ["AgainstMemory"]


class AgainstMemory(EmbeddingLoss):
    """A loss of a batch's anchors against a memory, created within one step.

    It has the reduction of the inner loss, so sample weights, masks, and replicas work as in that
    loss.

    Args:
        loss: A loss whose `takes_memory` is True.
        memory: A memory that includes the rows of the batch.
    """

    def __init__(self, loss: EmbeddingLoss, memory: Memory) -> None:
        super().__init__(reduction=loss.reduction, name=loss.name, dtype=loss.dtype)
        self.loss = loss
        self.memory = memory

    def checked_labels(self, labels: Tensor) -> Tensor:
        """Convert the labels as the inner loss does."""
        return self.loss.checked_labels(labels)

    def compute_loss(self, class_ids: Tensor, embeddings: Tensor) -> Tensor:
        """Compute the loss `[n]`."""
        return self.loss.compute_memory_loss(class_ids, embeddings, self.memory)

    def compute_parts(self, class_ids: Tensor, embeddings: Tensor) -> Parts:
        """Compute the two parts `[n]`."""
        return self.loss.compute_memory_parts(class_ids, embeddings, self.memory)
