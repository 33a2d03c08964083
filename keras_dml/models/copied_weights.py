"""A new model that starts from an old one, also with a longer embedding."""

import keras
import numpy as np
from keras import ops

from keras_dml._common.checks import shown
from keras_dml._common.errors import ArgumentError


def copy_weights(source: keras.Model, target: keras.Model) -> None:
    """Copy the weights of a model into another one of the same layers.

    `target.weights[i] = source.weights[i]`. Where only the last axis of the target is longer, as in
    the projection to a longer embedding, the numbers of the source come first, and the others keep
    their values. So the first numbers of the target's embeddings are the source's embeddings until
    the target trains.

    With `BackwardCompatible`, such a start lets the new model find old rows from the first step on.
    docs/pages/results/upgrade.md has measurements.

    Args:
        source: A built model.
        target: A built model with the same layers in the same order.

    Raises:
        ValueError: A model is not built, or the target has another number of weights, or a weight
            of another shape. No weight has changed then.

    Examples:
        >>> def encoder(dimensions):
        ...     return keras.Sequential([keras.Input((8,)), keras.layers.Dense(dimensions)])
        >>> old, new = encoder(4), encoder(6)
        >>> copy_weights(old, new)
        >>> images = np.random.default_rng(0).normal(size=(3, 8))
        >>> np.allclose(new(images)[:, :4], old(images), atol=1e-6)
        True
    """
    for name, model in (("source", source), ("target", target)):
        if not isinstance(model, keras.Model) or not model.built:
            raise ArgumentError(f"{name} must be a built keras.Model, but got {shown(model)}.")
    if len(source.weights) != len(target.weights):
        raise ArgumentError(
            f"target must have the {len(source.weights)} weights of source, but got "
            f"{len(target.weights)}. Build both models from the same layers."
        )
    for old, new in zip(source.weights, target.weights, strict=True):
        given, wanted = tuple(old.shape), tuple(new.shape)
        if wanted[:-1] != given[:-1] or len(wanted) != len(given) or wanted[-1:] < given[-1:]:
            raise ArgumentError(
                f"target must have the shapes of source, or a longer last axis, but {new.path} has "
                f"the shape {wanted} for {given} of {old.path}. Build both models from the same "
                "layers, and only the embedding longer."
            )
    for old, new in zip(source.weights, target.weights, strict=True):
        values = np.array(ops.convert_to_numpy(new.value))
        values[tuple(map(slice, old.shape))] = ops.convert_to_numpy(old.value)
        new.assign(values)
