"""Layers to put into a model: heads, poolings, normalization, dropout."""

from keras_dml._common.exports import public_names
from keras_dml.layers.boundary import Boundary as Boundary
from keras_dml.layers.center_regularizer import CenterRegularizer as CenterRegularizer
from keras_dml.layers.frozen_statistics import (
    FrozenStatisticsBatchNormalization as FrozenStatisticsBatchNormalization,
)
from keras_dml.layers.global_batch_dropout import GlobalBatchDropout as GlobalBatchDropout
from keras_dml.layers.pooling import POOLINGS as POOLINGS
from keras_dml.layers.pooling import GeneralizedMeanPooling as GeneralizedMeanPooling
from keras_dml.layers.pooling import TokenLayout as TokenLayout
from keras_dml.layers.proxy_head import ProxyHead as ProxyHead
from keras_dml.layers.unit_length import UnitLength as UnitLength

__all__ = [*public_names(__name__), "POOLINGS"]
