"""Metric-learning losses: class ids in `y_true`, embeddings (or logits) in `y_pred`."""

from keras_dml.losses.base import EmbeddingLoss, PairLoss
from keras_dml.losses.contrastive import ContrastiveLoss
from keras_dml.losses.cross_entropy import CrossEntropyLoss
from keras_dml.losses.multi_similarity import MultiSimilarityLoss

LOSSES = {
    "ce": CrossEntropyLoss,
    "contrastive": ContrastiveLoss,
    "multi_similarity": MultiSimilarityLoss,
}
"""The losses by the names that `--loss` takes."""


def get(name, /, **arguments):
    """The loss of this name with these constructor arguments.

    Raises:
        ValueError: unknown name (lists the known ones), or arguments that the loss refuses.
    """
    if name not in LOSSES:
        raise ValueError(
            f"loss must be one of {', '.join(sorted(LOSSES))}. Received: loss={name!r}"
        )
    return LOSSES[name](**arguments)


__all__ = [
    "LOSSES",
    "ContrastiveLoss",
    "CrossEntropyLoss",
    "EmbeddingLoss",
    "MultiSimilarityLoss",
    "PairLoss",
    "get",
]
