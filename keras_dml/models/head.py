"""Heads: an embedding model on a backbone, and a classifier on an embedding model."""

import difflib
from collections.abc import Sequence

import keras
from keras import ops

from keras_dml._backend.cloning import ends_of
from keras_dml._backend.replicas import place_in_global_batch
from keras_dml._common.checks import (
    check_bool,
    check_choice,
    check_number,
    check_seed,
    check_whole,
    items_of,
    shown,
)
from keras_dml._common.errors import ArgumentError, ArgumentTypeError, argument_error
from keras_dml._common.types import Tensor
from keras_dml._pairwise.pairs import row_lengths
from keras_dml.models.pooling import POOLINGS, Features, features_of, pooled, symbolic_embedding

# Names of the layers after the backbone.
_NAMES = ("features", "feature_norm", "projection", "embeddings", "dropout", "logits")


@keras.saving.register_keras_serializable("keras_dml")
class GlobalBatchDropout(keras.layers.Dropout):
    """Dropout with one mask for the global batch, for any number of replicas or chunks.

    Keras draws the same mask on every replica, because their seeds are equal. Here each replica
    draws the whole mask, as one device would, and takes its rows. All replicas must have the same
    number of rows. Chunks of `CachedGradients` do the same. The arguments are the arguments of
    `keras.layers.Dropout`.

    Examples:
        >>> layer = GlobalBatchDropout(0.5, seed=0)
        >>> float(np.max(layer(np.ones([4, 8], "float32"), training=True)))
        2.0
    """

    draws_for_global_batch = True

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        """Set a fraction `rate` of the inputs to 0 and scale the others to compensate."""
        shape = ops.shape(inputs)
        place = place_in_global_batch(shape[0])
        if not training or self.rate == 0 or place is None:
            return super().call(inputs, training=training)
        first_row, rows = place
        ones = ops.ones((rows, *shape[1:]), dtype=inputs.dtype)
        mask = keras.random.dropout(ones, self.rate, seed=self.seed_generator)
        return inputs * ops.slice(mask, (first_row, *[0] * (len(shape) - 1)), shape)


@keras.saving.register_keras_serializable("keras_dml")
class UnitLength(keras.Layer):
    """L2 normalization that keeps equal rows equal.

    `keras.layers.UnitNormalization` multiplies by `rsqrt`, which on TensorFlow rounds differently
    at the end of a batch, so that two copies of an image have different embeddings. A row of zeros
    stays 0. The layer normalizes the last axis and has the arguments of `keras.layers.Layer`.

    Examples:
        >>> np.array(UnitLength()(np.array([[3, 4], [0, 0]], "float32")))
        array([[0.6, 0.8],
               [0. , 0. ]], dtype=float32)
    """

    def call(self, inputs: Tensor) -> Tensor:
        """Divide the rows `[n, d]` by their lengths."""
        return inputs / row_lengths(inputs, epsilon=1e-24)


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
        pooling: Pooling of maps or tokens to one vector, a name in `keras_dml.models.POOLINGS`:
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


def check_embedding_model(name: str, model: object) -> int | None:
    """Check that `model` is a trainable embedding model, and return d if it is known.

    Args:
        name: Name of the argument, for the message.
        model: Value of the argument.

    Raises:
        ValueError: The model is not a built `keras.Model`, or its output is not exactly `[n, d]`.
    """
    # The output shape of a subclassed model is unknown, and is checked when it is called.
    shape = getattr(model, "output_shape", (None, None))
    built = isinstance(model, keras.Model) and model.built
    if not built or not isinstance(shape, tuple) or len(shape) != 2:
        state = f"with output shape {shape}" if built else "which is not built"
        raise ArgumentError(
            f"{name} must be a built keras.Model with embeddings [n, d] as its only output, but "
            f"got {shown(model)}, {state}."
        )
    return shape[1]


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
