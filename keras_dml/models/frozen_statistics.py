"""Copies of models whose batch norms keep their stored statistics."""

import keras

from keras_dml._backend.cloning import all_layers, copied, same_layer
from keras_dml._common.errors import ArgumentError
from keras_dml.layers.frozen_statistics import FrozenStatisticsBatchNormalization


def with_frozen_statistics(model: keras.Model) -> keras.Model:
    """Copy `model` with the same weights and with batch norms that keep their stored statistics.

    Batch norms in nested functional and sequential models at any depth are replaced too.

    Examples:
        >>> inputs = keras.Input((4,))
        >>> model = keras.Model(inputs, keras.layers.BatchNormalization()(inputs))
        >>> type(with_frozen_statistics(model).layers[-1]).__name__
        'FrozenStatisticsBatchNormalization'

    Args:
        model: A functional or sequential `keras.Model`.

    Raises:
        ValueError: A layer would still update statistics (the message names it): a subclass of
            batch norm, or a batch norm within another layer or a subclassed model. Or a layer
            cannot be recreated from its configuration, or the model is neither functional nor
            sequential.
    """
    copy = copied(model, _frozen_layer)
    for layer in live_statistics(copy):
        raise ArgumentError(
            f"model must have only batch norm that can be frozen, but got {layer.path} "
            f"({type(layer).__name__}). Another layer contains it, or it overrides call(). Use "
            "keras_dml.layers.FrozenStatisticsBatchNormalization there."
        )
    return copy


def _frozen_layer(layer: keras.Layer) -> keras.Layer:
    if type(layer) is keras.layers.BatchNormalization:
        return FrozenStatisticsBatchNormalization.from_config(layer.get_config())
    return same_layer(layer)


def live_statistics(model: keras.Model) -> list[keras.Layer]:
    """Return the layers that update statistics.

    Layers of other libraries are recognized by the attribute `moving_mean`.
    """
    return [
        layer
        for layer in all_layers(model)
        if (isinstance(layer, keras.layers.BatchNormalization) or hasattr(layer, "moving_mean"))
        and not isinstance(layer, FrozenStatisticsBatchNormalization)
    ]
