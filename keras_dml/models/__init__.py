"""Models: backbones, the embedding head, the classifier."""

from keras_dml.models.backbones import (
    FrozenStatisticsBatchNormalization,
    InputScaling,
    backbone_names,
    build_backbone,
    small_convnet,
    with_frozen_statistics,
)
from keras_dml.models.distributed_model import DistributedModel, FunctionalDistributedModel
from keras_dml.models.head import classifier_model, embedding_model
from keras_dml.models.rankmi import RankMI
from keras_dml.models.statistics_network import StatisticsNetwork

__all__ = [
    "DistributedModel",
    "FrozenStatisticsBatchNormalization",
    "FunctionalDistributedModel",
    "InputScaling",
    "RankMI",
    "StatisticsNetwork",
    "backbone_names",
    "build_backbone",
    "classifier_model",
    "embedding_model",
    "small_convnet",
    "with_frozen_statistics",
]
