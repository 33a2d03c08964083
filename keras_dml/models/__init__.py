"""Models: backbones, the embedding head, the classifier."""

from keras_dml._common.deprecation import moved_names
from keras_dml._common.exports import public_names
from keras_dml.models.backbones import InputScaling as InputScaling
from keras_dml.models.backbones import backbone_names as backbone_names
from keras_dml.models.backbones import build_backbone as build_backbone
from keras_dml.models.backbones import feature_extractor as feature_extractor
from keras_dml.models.backbones import small_convnet as small_convnet
from keras_dml.models.backward_compatible import BackwardCompatible as BackwardCompatible
from keras_dml.models.blocks import layer_multipliers as layer_multipliers
from keras_dml.models.blocks import rematerialize_blocks as rematerialize_blocks
from keras_dml.models.blocks import transformer_blocks as transformer_blocks
from keras_dml.models.cached_gradients import CachedGradients as CachedGradients
from keras_dml.models.copied_weights import copy_weights as copy_weights
from keras_dml.models.cross_batch_memory import CrossBatchMemory as CrossBatchMemory
from keras_dml.models.distributed_model import DistributedModel as DistributedModel
from keras_dml.models.distributed_model import (
    FunctionalDistributedModel as FunctionalDistributedModel,
)
from keras_dml.models.dual_encoder import DualEncoder as DualEncoder
from keras_dml.models.from_hub import from_hub as from_hub
from keras_dml.models.frozen_features import split_at_features as split_at_features
from keras_dml.models.frozen_statistics import with_frozen_statistics as with_frozen_statistics
from keras_dml.models.head import classifier_model as classifier_model
from keras_dml.models.head import embedding_model as embedding_model
from keras_dml.models.image_size import with_image_size as with_image_size
from keras_dml.models.keras_files import load_keras_file as load_keras_file
from keras_dml.models.lora import LORA_LAYERS as LORA_LAYERS
from keras_dml.models.lora import enable_lora as enable_lora
from keras_dml.models.lora import has_lora as has_lora
from keras_dml.models.lora import with_merged_lora as with_merged_lora
from keras_dml.models.presets import from_preset as from_preset
from keras_dml.models.proxy_model import dominant_centers as dominant_centers
from keras_dml.models.proxy_model import proxy_model as proxy_model
from keras_dml.models.rankmi import RankMI as RankMI
from keras_dml.models.statistics_network import StatisticsNetwork as StatisticsNetwork
from keras_dml.models.text import TextTransform as TextTransform
from keras_dml.models.text import text_backbone as text_backbone

__all__ = [*public_names(__name__), "LORA_LAYERS"]

__getattr__ = moved_names(
    __name__,
    "keras_dml.layers",
    "Boundary", "CenterRegularizer", "FrozenStatisticsBatchNormalization",
    "GeneralizedMeanPooling", "GlobalBatchDropout", "POOLINGS", "ProxyHead", "TokenLayout",
    "UnitLength",
)  # fmt: skip
