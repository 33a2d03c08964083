"""A loss whose candidates are the rows of a memory."""

from keras_dml._pairwise.pairs import Memory
from keras_dml.losses.base import EmbeddingLoss
from keras_dml.types import Parts, Tensor

__all__ = ["AgainstMemory"]


class AgainstMemory(EmbeddingLoss):
    """A loss of a batch's anchors against a memory, for one step: it is made within the step.

    Its reduction is the loss's, so that weights and masks weigh anchors, and replicas add up, as
    in the loss itself.

    Args:
        loss: one that `takes_memory`.
        memory: with the batch's own rows in it.
    """

    def __init__(self, loss: EmbeddingLoss, memory: Memory) -> None:
        super().__init__(reduction=loss.reduction, name=loss.name, dtype=loss.dtype)
        self.loss = loss
        self.memory = memory

    def checked_labels(self, labels: Tensor) -> Tensor:
        """As the loss takes them."""
        return self.loss.checked_labels(labels)

    def compute_loss(self, class_ids: Tensor, embeddings: Tensor) -> Tensor:
        """The loss `[n]`."""
        return self.loss.compute_memory_loss(class_ids, embeddings, self.memory)

    def compute_parts(self, class_ids: Tensor, embeddings: Tensor) -> Parts:
        """Compute the two parts `[n]`."""
        return self.loss.compute_memory_parts(class_ids, embeddings, self.memory)
