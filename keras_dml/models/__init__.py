"""Models: backbones, the embedding head, the classifier."""

from keras_dml.models.backbones import (
    FrozenStatisticsBatchNormalization,
    InputScaling,
    backbone_names,
    build_backbone,
    small_convnet,
    with_frozen_statistics,
)
from keras_dml.models.head import classifier_model, embedding_model

__all__ = [
    "FrozenStatisticsBatchNormalization",
    "InputScaling",
    "backbone_names",
    "build_backbone",
    "classifier_model",
    "embedding_model",
    "small_convnet",
    "with_frozen_statistics",
]
