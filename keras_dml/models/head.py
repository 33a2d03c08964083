"""Heads: an embedding model on a backbone, and a classifier on an embedding model."""

import difflib
from collections.abc import Sequence

import keras

from keras_dml._backend.cloning import check_symbolic_model, ends_of
from keras_dml._backend.private import Functional
from keras_dml._common.checks import (
    check_bool,
    check_choice,
    check_number,
    check_seed,
    check_whole,
    items_of,
)
from keras_dml._common.errors import ArgumentError, ArgumentTypeError, argument_error
from keras_dml._common.types import Tensor
from keras_dml.layers.global_batch_dropout import GlobalBatchDropout
from keras_dml.layers.pooling import POOLINGS, Features, TokenLayout, pooled
from keras_dml.layers.unit_length import UnitLength
from keras_dml.models.embeddings import symbolic_embedding

# Names of the layers after the backbone.
_NAMES = ("features", "feature_norm", "projection", "embeddings", "dropout", "logits")


def embedding_model(
    backbone: keras.Model,
    embedding_size: int | None = None,
    feature_batch_norm: bool = False,
    pooling: str = "average",
    levels: Sequence[str] | None = None,
    name: str = "embedding",
) -> keras.Model:
    """Build an embedding model: backbone, global pooling, optional batch norm and projection.

    Examples:
        >>> backbone = keras_dml.models.small_convnet(image_size=16, filters=(8,))
        >>> model = embedding_model(backbone, embedding_size=32)
        >>> model.input_shape, model.output_shape
        ((None, 16, 16, 3), (None, 32))

    Args:
        backbone: A `keras.Model` from images to feature maps `[n, h, w, c]`, tokens `[n, t, c]`, or
            vectors `[n, c]`. A `TokenLayout` at its end describes class token and registers.
        embedding_size: d of a dense projection without activation. None uses the pooled features as
            the embedding (d = c).
        feature_batch_norm: Whether to normalize the pooled features by batch norm without scale and
            offset, with momentum 0.9 and epsilon 1e-5 (the PyTorch defaults, in the Keras
            convention).
        pooling: Pooling of maps or tokens to one vector, a name in `keras_dml.layers.POOLINGS`:
            `"average"`, `"max"`, `"sum"` (average plus max), or `"gem"` (a generalized mean with
            learned exponent) over the positions; for tokens also `"cls"` (the class token) and
            `"cls_average"` (class token and mean of the patches). Vectors are not pooled.
        levels: None, or names of L layers of the backbone. Each level is pooled, projected, and
            scaled to length 1 separately (layer `LEVEL_embeddings`), so that all levels have equal
            weight. The embedding is their concatenation, `[n, L d]`. For (L, M, H) of Wang et al.
            2019, use `inception_3c_output`, `inception_4e_output`, `inception_5b_output` of
            `bn_inception`.
        name: Name of the model.

    Returns:
        A `keras.Model` from float images in 0..255 to float32 embeddings `[n, d]`, not normalized.
        With `levels`, all embeddings have length √L.

    Raises:
        ValueError: The output of the backbone is none of the three, the pooling is unknown or not
            supported by the backbone, `embedding_size` is below 1, or `levels` is empty, repeated,
            or not layers with feature maps.
    """
    feature_batch_norm = check_bool("feature_batch_norm", feature_batch_norm)
    features_of(backbone)  # fail before any layer is built
    check_choice("pooling", pooling, tuple(POOLINGS))
    if embedding_size is not None:
        embedding_size = check_whole("embedding_size", embedding_size, least=1)

    def projected(features: Features, prefix: str = "") -> Tensor:
        x = pooled(features, pooling, f"{prefix}features")
        if feature_batch_norm:
            norm = f"{prefix}feature_norm"
            x = keras.layers.BatchNormalization(
                momentum=0.9, epsilon=1e-5, center=False, scale=False, name=norm
            )(x)
        if embedding_size is not None:
            x = keras.layers.Dense(embedding_size, name=f"{prefix}projection")(x)
        return x

    # float32 for any precision policy, because distances and served vectors need it.
    if levels is None:
        if not {layer.name for layer in backbone.layers}.isdisjoint(_NAMES):
            backbone = _within(backbone)
        x = projected(features_of(backbone))
        x = keras.layers.Activation("linear", dtype="float32", name="embeddings")(x)
        return keras.Model(ends_of(backbone)[0], x, name=name)
    parts = [
        UnitLength(dtype="float32", name=f"{level}_embeddings")(
            projected(Features(maps), f"{level}_")
        )
        for level, maps in _levels(backbone, levels).items()
    ]
    x = keras.layers.Concatenate(dtype="float32", name="embeddings")(parts)
    return keras.Model(ends_of(backbone)[0], x, name=name)


def features_of(backbone: keras.Model) -> Features:
    """Return the output of a backbone, described by its `TokenLayout`.

    Without a layout, `average`, `max`, `sum`, and `gem` treat all tokens as patches. `cls` and
    `cls_average` assume that the first token is the class token.

    Args:
        backbone: A functional or sequential `keras.Model`.

    Raises:
        ValueError: The output is neither maps, nor tokens, nor vectors.
    """
    check_symbolic_model("backbone", backbone)
    values = ends_of(backbone)[1]
    rank = len(values.shape) if hasattr(values, "shape") else None
    if rank not in (2, 3, 4):
        received = "several outputs" if rank is None else f"output shape {values.shape}"
        raise ArgumentError(
            "backbone must give feature maps [n, h, w, c], tokens [n, t, c], or vectors [n, c], "
            f"but got {received}."
        )
    if rank != 3:
        return Features(values)
    layout = _layout(backbone)
    if layout is None:
        return Features(values, class_token=None)
    return Features(values, layout.class_token, layout.class_token + layout.registers)


def _layout(model: keras.Model) -> TokenLayout | None:
    """Return a model's last layer if it is a layout, also within a nested model."""
    last = model.layers[-1]
    if isinstance(last, (Functional, keras.Sequential)):
        return _layout(last)
    return last if isinstance(last, TokenLayout) else None


def _within(backbone: keras.Model) -> keras.Model:
    """Wrap the backbone as the only layer of a model, so that its layer names do not conflict."""
    inputs = keras.tree.map_structure(
        lambda tensor: keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype, name=tensor.name),
        ends_of(backbone)[0],
    )
    return keras.Model(inputs, backbone(inputs), name=backbone.name)


def _levels(backbone: keras.Model, levels: Sequence[str]) -> dict[str, Tensor]:
    """Return the feature maps of each level."""
    maps = {layer.name: layer.output for layer in backbone.layers if layer.output is not None}
    maps = {name: output for name, output in maps.items() if len(output.shape) == 4}
    given = items_of(levels)
    if given is None or not all(isinstance(level, str) for level in given):
        wanted = "a list of names of layers of the backbone"
        raise argument_error("levels", wanted, levels, ArgumentTypeError)
    levels = given
    if not levels or len(set(levels)) < len(levels) or not set(levels) <= set(maps):
        near = [found for level in levels for found in difflib.get_close_matches(level, maps, 2)]
        raise argument_error(
            "levels",
            "different layers of the backbone with feature maps, such as "
            f"{', '.join(near or list(maps)[-1:])}",
            levels,
        )
    return {level: maps[level] for level in levels}


def classifier_model(
    embedding: keras.Model,
    num_classes: int,
    dropout: float = 0.0,
    seed: int | None = 0,
    name: str = "classifier",
) -> keras.Model:
    """Add dropout and a zero-initialized linear classifier to an embedding model.

    Examples:
        >>> inputs = keras.Input((4,))
        >>> embedding = keras.Model(inputs, keras.layers.Dense(2)(inputs))
        >>> model = classifier_model(embedding, num_classes=10, dropout=0.5)
        >>> model.output_shape
        (None, 10)

    Args:
        embedding: A functional or sequential `keras.Model` from images to embeddings `[n, d]`.
        num_classes: K, the number of training classes.
        dropout: Dropout rate on the embeddings, in [0, 1).
        seed: Seed of the dropout masks.
        name: Name of the model.

    Returns:
        A `keras.Model` from images to logits `[n, K]`, which shares the layers of `embedding`.

    Raises:
        ValueError: The output of `embedding` is not `[n, d]`, there are fewer than 2 classes, or
            the rate is outside [0, 1).

    Reference: Boudiaf et al. 2020, section 5 and their published settings.
    """
    inputs, x = symbolic_embedding(embedding)
    num_classes = check_whole("num_classes", num_classes, least=2)
    dropout = check_number("dropout", dropout, least=0, below=1)
    if seed is not None:
        seed = check_seed("seed", seed)
    if dropout:
        x = GlobalBatchDropout(dropout, seed=seed, name="dropout")(x)
    logits = keras.layers.Dense(
        num_classes, kernel_initializer="zeros", dtype="float32", name="logits"
    )(x)
    return keras.Model(inputs, logits, name=name)
