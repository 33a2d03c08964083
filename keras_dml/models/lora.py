"""LoRA: low-rank additions to the attention of a frozen backbone, by `enable_lora` of Keras."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_dml._backend.cloning import all_layers, copied, same_layer
from keras_dml._common.checks import check_whole
from keras_dml._common.errors import argument_error

LORA_LAYERS = {
    "keras.layers.MultiHeadAttention (DINOv2, ViT, DeiT and SigLIP of keras-hub)": (
        "query",
        "value",
    ),
    "keras-hub's cached attention": ("query_dense", "value_dense"),
    "DINOv3 of keras-hub": ("q_proj", "v_proj"),
}
"""Names of the query and value layers, by model family."""

_OF_LORA = ("lora_rank", "lora_alpha")


def enable_lora(
    backbone: keras.Model, rank: int, layers: Sequence[str] | None = None
) -> list[keras.Layer]:
    """Freeze a backbone, and add trainable low-rank matrices to some of its kernels, in place.

    A kernel W `[i, o]` becomes W + A·B. A `[i, r]` is drawn at random and B `[r, o]` is zero, so
    the outputs do not change at first. Only A and B train. Biases are frozen.

    Args:
        backbone: A built `keras.Model`.
        rank: r, at least 1.
        layers: Names of dense, `EinsumDense`, `Embedding`, or convolution layers at any depth of
            the backbone. None selects the query and value layers in `LORA_LAYERS`.

    Returns:
        The layers with additions.

    Raises:
        ValueError: No layer with these names supports additions (the message lists the layers that
            do), or `rank` is below 1.

    Reference: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022, Eq. 3,
    and section 4.2 for the choice of queries and values.

    Examples:

        keras_dml.models.enable_lora(backbone, rank=4)
        embedding = keras_dml.models.embedding_model(backbone, embedding_size=64)
        ...
        keras_dml.models.with_merged_lora(embedding).save("embedding.keras")
    """
    rank = check_whole("rank", rank, least=1)
    names = {name for family in LORA_LAYERS.values() for name in family}
    names = names if layers is None else set(layers)
    able = [layer for layer in all_layers(backbone) if callable(_enabler(layer))]
    chosen = [layer for layer in able if layer.name in names]
    if not chosen:
        there = sorted({layer.name for layer in able})
        known = f"{', '.join(there[:12])}{', …' if len(there) > 12 else ''}" if there else "none"
        wanted = f"layers of {backbone.name} that can have low-rank additions ({known})"
        raise argument_error("layers", wanted, sorted(names))
    # A layer trains only if all layers around it are trainable, so those stay trainable. Variables
    # are frozen one by one.
    around = _with_those_around(backbone, chosen)
    backbone.trainable = True
    for layer in all_layers(backbone):
        if id(layer) not in around:
            layer.trainable = False
    for variable in backbone.variables:
        variable.trainable = False
    for layer in chosen:
        layer.enable_lora(rank)
    return chosen


def with_merged_lora(model: keras.Model) -> keras.Model:
    """Copy a model and merge its low-rank additions into the kernels: W + A·B.

    Examples:
        >>> inputs = keras.Input((4,))
        >>> dense = keras.layers.Dense(4)
        >>> model = keras.Model(inputs, dense(inputs))
        >>> dense.enable_lora(2)
        >>> has_lora(model), has_lora(with_merged_lora(model))
        (True, False)

    Args:
        model: A functional or sequential `keras.Model`, with or without additions.

    Raises:
        ValueError: A layer cannot be copied, as in `keras_dml.models.with_frozen_statistics`.
    """
    # Keras merges the additions when it saves a layer, and a copy gets the saved state.
    return copied(model, lambda layer: same_layer(layer, _without_lora))


def has_lora(model: keras.Model) -> bool:
    """Return whether any layer of a model, at any depth, has low-rank additions.

    Examples:
        >>> has_lora(keras_dml.models.small_convnet(image_size=16, filters=(8,)))
        False
    """
    return any(getattr(layer, "lora_enabled", False) for layer in all_layers(model))


def _enabler(layer: keras.Layer) -> Any:
    # keras-hub models define `enable_lora` for all layers together.
    return None if isinstance(layer, keras.Model) else getattr(layer, "enable_lora", None)


def _with_those_around(backbone: keras.Model, chosen: Sequence[keras.Layer]) -> set[int]:
    """Return the ids of the chosen layers and of every layer or model that contains one."""
    ids = {id(layer) for layer in chosen}
    return {
        id(layer)
        for layer in all_layers(backbone)
        if ids & {id(inner) for inner in all_layers(layer)}
    }


def _without_lora(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration without low-rank additions."""
    return {key: value for key, value in config.items() if key not in _OF_LORA}
