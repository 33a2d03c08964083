"""Metric-learning losses: class ids in `y_true`, embeddings (or logits) in `y_pred`."""

from collections.abc import Callable
from typing import Any

import keras

from keras_dml._backend.gradients import ForwardModeError as ForwardModeError
from keras_dml._backend.gradients import SecondDerivativeError as SecondDerivativeError
from keras_dml._common.checks import check_choice, shown
from keras_dml._common.errors import ArgumentTypeError, argument_error
from keras_dml._common.exports import missing_attribute
from keras_dml._common.types import Config
from keras_dml._pairwise.pairs import Pairs as Pairs
from keras_dml.losses.angular import AngularLoss as AngularLoss
from keras_dml.losses.base import EmbeddingLoss as EmbeddingLoss
from keras_dml.losses.binomial_deviance import BinomialDevianceLoss as BinomialDevianceLoss
from keras_dml.losses.center import CenterLoss as CenterLoss
from keras_dml.losses.circle import CircleLoss as CircleLoss
from keras_dml.losses.contrastive import ContrastiveLoss as ContrastiveLoss
from keras_dml.losses.cosine_softmax import ArcFaceLoss as ArcFaceLoss
from keras_dml.losses.cosine_softmax import CosFaceLoss as CosFaceLoss
from keras_dml.losses.cosine_softmax import NormSoftmaxLoss as NormSoftmaxLoss
from keras_dml.losses.cosine_softmax import SoftTripleLoss as SoftTripleLoss
from keras_dml.losses.cosine_softmax import SubCenterArcFaceLoss as SubCenterArcFaceLoss
from keras_dml.losses.cross_entropy import CrossEntropyLoss as CrossEntropyLoss
from keras_dml.losses.fastap import FastAPLoss as FastAPLoss
from keras_dml.losses.histogram import HistogramLoss as HistogramLoss
from keras_dml.losses.ice import InstanceCrossEntropyLoss as InstanceCrossEntropyLoss
from keras_dml.losses.lifted_structure import LiftedStructureLoss as LiftedStructureLoss
from keras_dml.losses.margin import MarginLoss as MarginLoss
from keras_dml.losses.matryoshka import MatryoshkaLoss as MatryoshkaLoss
from keras_dml.losses.multi_similarity import MultiSimilarityLoss as MultiSimilarityLoss
from keras_dml.losses.n_pairs import NPairsLoss as NPairsLoss
from keras_dml.losses.nt_xent import NTXentLoss as NTXentLoss
from keras_dml.losses.pair_loss import PairLoss as PairLoss
from keras_dml.losses.pairwise_cross_entropy import (
    PairwiseCrossEntropyLoss as PairwiseCrossEntropyLoss,
)
from keras_dml.losses.pairwise_cross_entropy import (
    SimplifiedPairwiseCrossEntropyLoss as SimplifiedPairwiseCrossEntropyLoss,
)
from keras_dml.losses.pairwise_sigmoid import PairwiseSigmoidLoss as PairwiseSigmoidLoss
from keras_dml.losses.proxy_anchor import ProxyAnchorLoss as ProxyAnchorLoss
from keras_dml.losses.proxy_loss import ProxyLoss as ProxyLoss
from keras_dml.losses.proxy_nca import ProxyNCALoss as ProxyNCALoss
from keras_dml.losses.quadruplet import QuadrupletLoss as QuadrupletLoss
from keras_dml.losses.ranked_list import RankedListLoss as RankedListLoss
from keras_dml.losses.rankmi import FixedStatistics as FixedStatistics
from keras_dml.losses.rankmi import RankMILoss as RankMILoss
from keras_dml.losses.recall_at_k import RecallAtKLoss as RecallAtKLoss
from keras_dml.losses.registry import REGISTERED
from keras_dml.losses.smooth_ap import SmoothAPLoss as SmoothAPLoss
from keras_dml.losses.snca import SNCALoss as SNCALoss
from keras_dml.losses.supcon import SupConLoss as SupConLoss
from keras_dml.losses.tcm import ThresholdConsistentMarginLoss as ThresholdConsistentMarginLoss
from keras_dml.losses.triplet import TripletLoss as TripletLoss

# Losses of other libraries whose names are not similar to ours.
_ELSEWHERE = {
    "CLIPLoss": "NTXentLoss",
    "CosineEmbeddingLoss": "ContrastiveLoss",
    "InfoNCE": "NTXentLoss",
    "InfoNCELoss": "NTXentLoss",
    "MultiNegativesRankLoss": "NTXentLoss",
    "MultipleNegativesRankingLoss": "NTXentLoss",
    "NCALoss": "SNCALoss",
    "NormalizedSoftmaxLoss": "NormSoftmaxLoss",
    "SigLIPLoss": "PairwiseSigmoidLoss",
    "SimCLRLoss": "NTXentLoss",
    "SoftmaxLoss": "CrossEntropyLoss",
    "SoftNearestNeighborLoss": "SNCALoss",
    "TripletMarginLoss": "TripletLoss",
}

LOSSES: dict[str, type[EmbeddingLoss]] = dict(sorted(REGISTERED.items()))
"""The losses by their `--loss` names."""


def get(identifier: str | Config | Callable[..., Any] | None, /, **arguments: Any) -> Any:
    """Return the loss of a name, a configuration, or a callable.

    Examples:
        >>> get("triplet", margin=0.1).margin
        0.1
        >>> get({"class_name": "TripletLoss", "config": {"margin": 0.3}}).margin
        0.3

    Args:
        identifier: A name in `LOSSES`, or the name of its class; a configuration, from
            `keras.losses.serialize` or with one of these names as `class_name`; or a loss or a
            function, which is returned unchanged, as None is.
        arguments: Constructor arguments of the loss of a name.

    Raises:
        ValueError: The name is unknown (the message lists the known names), the loss refuses the
            arguments, or `identifier` is none of these.
    """
    by_class = {loss.__name__: loss for loss in LOSSES.values()}
    if isinstance(identifier, str):
        loss = by_class.get(identifier)
        return (loss or LOSSES[check_choice("loss", identifier, tuple(LOSSES))])(**arguments)
    if arguments:
        raise ArgumentTypeError(
            f"loss must be a name to have arguments, but got {shown(identifier)} with "
            f"{', '.join(arguments)}."
        )
    if isinstance(identifier, dict):
        loss = {**LOSSES, **by_class}.get(identifier.get("class_name", ""))
        if loss is not None and identifier.get("registered_name") is None:
            return loss.from_config(identifier.get("config") or {})
        return keras.losses.deserialize(identifier)
    if identifier is None or callable(identifier):
        return identifier
    wanted = "a name in keras_dml.losses.LOSSES, a configuration, or a callable"
    raise argument_error("loss", wanted, identifier, ArgumentTypeError)


# A new loss needs only its import above. Type checkers see its `as` as an export. A literal
# `__all__` would repeat the list.
globals()["__all__"] = sorted(
    {"LOSSES", "EmbeddingLoss", "FixedStatistics", "MatryoshkaLoss", "PairLoss", "Pairs"}
    | {"ForwardModeError", "ProxyLoss", "SecondDerivativeError", "get"}
    | {loss.__name__ for loss in LOSSES.values()}
)


def __getattr__(name: str) -> Any:
    raise missing_attribute(__name__, name, globals()["__all__"], _ELSEWHERE.get(name))
