"""Models: backbones, the embedding head, the classifier."""

from keras_dml.models.backbones import (
    InputScaling,
    backbone_names,
    build_backbone,
    feature_extractor,
    small_convnet,
)
from keras_dml.models.blocks import layer_multipliers, rematerialize_blocks, transformer_blocks
from keras_dml.models.cached_gradients import CachedGradients
from keras_dml.models.cross_batch_memory import CrossBatchMemory
from keras_dml.models.distributed_model import DistributedModel, FunctionalDistributedModel
from keras_dml.models.dual_encoder import DualEncoder
from keras_dml.models.from_hub import from_hub
from keras_dml.models.frozen_features import split_at_features
from keras_dml.models.frozen_statistics import (
    FrozenStatisticsBatchNormalization,
    with_frozen_statistics,
)
from keras_dml.models.head import (
    GlobalBatchDropout,
    UnitLength,
    classifier_model,
    embedding_model,
)
from keras_dml.models.image_size import with_image_size
from keras_dml.models.keras_files import load_keras_file
from keras_dml.models.lora import LORA_LAYERS, enable_lora, has_lora, with_merged_lora
from keras_dml.models.pooling import POOLINGS, GeneralizedMeanPooling, TokenLayout
from keras_dml.models.proxy_head import (
    Boundary,
    CenterRegularizer,
    ProxyHead,
    dominant_centers,
    proxy_model,
)
from keras_dml.models.rankmi import RankMI
from keras_dml.models.statistics_network import StatisticsNetwork

__all__ = [
    "LORA_LAYERS",
    "POOLINGS",
    "Boundary",
    "CachedGradients",
    "CenterRegularizer",
    "CrossBatchMemory",
    "DistributedModel",
    "DualEncoder",
    "FrozenStatisticsBatchNormalization",
    "FunctionalDistributedModel",
    "GeneralizedMeanPooling",
    "GlobalBatchDropout",
    "InputScaling",
    "ProxyHead",
    "RankMI",
    "StatisticsNetwork",
    "TokenLayout",
    "UnitLength",
    "backbone_names",
    "build_backbone",
    "classifier_model",
    "dominant_centers",
    "embedding_model",
    "enable_lora",
    "feature_extractor",
    "from_hub",
    "has_lora",
    "layer_multipliers",
    "load_keras_file",
    "proxy_model",
    "rematerialize_blocks",
    "small_convnet",
    "split_at_features",
    "transformer_blocks",
    "with_frozen_statistics",
    "with_image_size",
    "with_merged_lora",
]
