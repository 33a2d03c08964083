"""Metric-learning losses: class ids in `y_true`, embeddings (or logits) in `y_pred`."""

from keras_dml.losses.base import EmbeddingLoss, PairLoss
from keras_dml.losses.center import CenterLoss
from keras_dml.losses.contrastive import ContrastiveLoss
from keras_dml.losses.cross_entropy import CrossEntropyLoss
from keras_dml.losses.fastap import FastAPLoss
from keras_dml.losses.ice import InstanceCrossEntropyLoss
from keras_dml.losses.lifted_structure import LiftedStructureLoss
from keras_dml.losses.multi_similarity import MultiSimilarityLoss
from keras_dml.losses.n_pairs import NPairsLoss
from keras_dml.losses.pairwise_cross_entropy import (
    PairwiseCrossEntropyLoss,
    SimplifiedPairwiseCrossEntropyLoss,
)
from keras_dml.losses.quadruplet import QuadrupletLoss
from keras_dml.losses.rankmi import FixedStatistics, RankMILoss
from keras_dml.losses.snca import SNCALoss
from keras_dml.losses.triplet import TripletLoss

LOSSES = {
    "ce": CrossEntropyLoss,
    "pce": PairwiseCrossEntropyLoss,
    "spce": SimplifiedPairwiseCrossEntropyLoss,
    "center": CenterLoss,
    "contrastive": ContrastiveLoss,
    "snca": SNCALoss,
    "multi_similarity": MultiSimilarityLoss,
    "fastap": FastAPLoss,
    "lifted_structure": LiftedStructureLoss,
    "n_pairs": NPairsLoss,
    "ice": InstanceCrossEntropyLoss,
    "rankmi": RankMILoss,
    "triplet": TripletLoss,
    "quadruplet": QuadrupletLoss,
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
    "CenterLoss",
    "ContrastiveLoss",
    "CrossEntropyLoss",
    "EmbeddingLoss",
    "FastAPLoss",
    "FixedStatistics",
    "InstanceCrossEntropyLoss",
    "LiftedStructureLoss",
    "MultiSimilarityLoss",
    "NPairsLoss",
    "PairLoss",
    "PairwiseCrossEntropyLoss",
    "QuadrupletLoss",
    "RankMILoss",
    "SNCALoss",
    "SimplifiedPairwiseCrossEntropyLoss",
    "TripletLoss",
    "get",
]
