"""From a backbone to an embedding model, and from that to a classifier over its features."""

import difflib
from collections.abc import Sequence

import keras
from keras import ops

from keras_dml.checks import check_bool, check_choice, check_number, check_seed, check_whole, shown
from keras_dml.cloning import ends_of
from keras_dml.distribute import place_in_global_batch
from keras_dml.errors import ArgumentError, ArgumentTypeError
from keras_dml.models.pooling import POOLINGS, Features, features_of, pooled, symbolic_embedding
from keras_dml.types import Tensor

# Of the layers behind the backbone.
_NAMES = ("features", "feature_norm", "projection", "embeddings", "dropout", "logits")


@keras.saving.register_keras_serializable("keras_dml")
class GlobalBatchDropout(keras.layers.Dropout):
    """Dropout whose mask is that of the global batch, however many replicas or chunks share it.

    Keras' own draws the same mask on every replica, since their seeds go alike. Here each replica
    draws the whole mask, as one device would, and takes its own rows; it must have as many rows as
    every other. So does each chunk of `CachedGradients`. Arguments are those of Keras' `Dropout`.

    Examples:
        >>> layer = GlobalBatchDropout(0.5, seed=0)
        >>> float(np.max(layer(np.ones([4, 8], "float32"), training=True)))
        2.0
    """

    draws_for_global_batch = True

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        """The inputs with a share of `rate` set to 0 and the others raised to make up for it."""
        shape = ops.shape(inputs)
        place = place_in_global_batch(shape[0])
        if not training or self.rate == 0 or place is None:
            return super().call(inputs, training=training)
        first_row, rows = place
        ones = ops.ones((rows, *shape[1:]), dtype=inputs.dtype)
        mask = keras.random.dropout(ones, self.rate, seed=self.seed_generator)
        return inputs * ops.slice(mask, (first_row, *[0] * (len(shape) - 1)), shape)


def embedding_model(
    backbone: keras.Model,
    embedding_size: int | None = None,
    feature_batch_norm: bool = False,
    pooling: str = "average",
    levels: Sequence[str] | None = None,
    name: str = "embedding",
) -> keras.Model:
    """Images to embeddings: backbone, global pooling, optional batch norm, optional projection.

    Examples:
        >>> backbone = keras_dml.models.small_convnet(image_size=16, filters=(8,))
        >>> model = embedding_model(backbone, embedding_size=32)
        >>> model.input_shape, model.output_shape
        ((None, 16, 16, 3), (None, 32))

    Args:
        backbone: a `keras.Model` from images to feature maps `[n, h, w, c]`, tokens `[n, t, c]`,
            whose class token and registers a `TokenLayout` at its end tells, or vectors `[n, c]`.
        embedding_size: d of a dense projection without activation, or None: the pooled features
            themselves are the embedding (d = c).
        feature_batch_norm: normalize the pooled features by batch norm without scale and offset,
            with momentum 0.9 and epsilon 1e-5 (the defaults of PyTorch, in Keras's convention).
        pooling: from maps or tokens to one vector, a name of `keras_dml.models.POOLINGS`:
            `"average"`, `"max"`, `"sum"` (both added), `"gem"` (a generalized mean with learned
            exponent) over the positions; of tokens also `"cls"` (the class token) and
            `"cls_average"` (it and the mean of the patches). Vectors stay as they are.
        levels: None, or names of L layers of the backbone. Each is pooled and projected on its own
            and scaled to length 1 (layer `LEVEL_embeddings`), so that all count alike; the
            embedding is all of them in a row, `[n, L d]`. (L, M, H) of Wang et al. 2019 is so with
            `bn_inception`'s `inception_3c_output`, `inception_4e_output`, `inception_5b_output`.
        name: the model's name.

    Returns:
        A `keras.Model` from float images in 0..255 to float32 embeddings `[n, d]`, not normalised;
        with `levels`, all of length √L.

    Raises:
        ValueError: a backbone that gives none of the three, a pooling that is unknown or that the
            backbone cannot give, `embedding_size` below 1, `levels` that are empty, repeated or no
            layers with feature maps.
    """
    feature_batch_norm = check_bool("feature_batch_norm", feature_batch_norm)
    features_of(backbone)  # refuses before anything is built
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

    # float32 whatever the precision policy: distances and the served vectors need it.
    if levels is None:
        if not {layer.name for layer in backbone.layers}.isdisjoint(_NAMES):
            backbone = _within(backbone)
        x = projected(features_of(backbone))
        x = keras.layers.Activation("linear", dtype="float32", name="embeddings")(x)
        return keras.Model(ends_of(backbone)[0], x, name=name)
    parts = [
        keras.layers.UnitNormalization(dtype="float32", name=f"{level}_embeddings")(
            projected(Features(maps), f"{level}_")
        )
        for level, maps in _levels(backbone, levels).items()
    ]
    x = keras.layers.Concatenate(dtype="float32", name="embeddings")(parts)
    return keras.Model(ends_of(backbone)[0], x, name=name)


def check_embedding_model(name: str, model: object) -> int | None:
    """Refuse what is no embedding model that can be trained; d, where it is known.

    Args:
        name: of the argument, for the message.
        model: what was given for it.

    Raises:
        ValueError: no built `keras.Model`, or one that does not give `[n, d]` alone.
    """
    # A subclassed model does not know its output's shape: it is looked at when it is called.
    shape = getattr(model, "output_shape", (None, None))
    built = isinstance(model, keras.Model) and model.built
    if not built or not isinstance(shape, tuple) or len(shape) != 2:
        raise ArgumentError(
            f"{name} must be a built keras.Model with embeddings [n, d] as its only output. "
            f"Received: {name}={shown(model)}, "
            + (f"with output shape {shape}" if built else "not built")
        )
    return shape[1]


def _within(backbone: keras.Model) -> keras.Model:
    """The backbone as the only layer of a model, in which its layers' names are its own affair."""
    inputs = keras.tree.map_structure(
        lambda tensor: keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype, name=tensor.name),
        ends_of(backbone)[0],
    )
    return keras.Model(inputs, backbone(inputs), name=backbone.name)


def _levels(backbone: keras.Model, levels: Sequence[str]) -> dict[str, Tensor]:
    """Feature maps of each level."""
    maps = {layer.name: layer.output for layer in backbone.layers if layer.output is not None}
    maps = {name: output for name, output in maps.items() if len(output.shape) == 4}
    try:
        given = None if isinstance(levels, str) else list(levels)
    except TypeError:
        given = None
    if given is None or not all(isinstance(level, str) for level in given):
        raise ArgumentTypeError(
            "levels must be a list of names of layers of the backbone. "
            f"Received: levels={shown(levels)}"
        )
    levels = given
    if not levels or len(set(levels)) < len(levels) or not set(levels) <= set(maps):
        near = [found for level in levels for found in difflib.get_close_matches(level, maps, 2)]
        raise ArgumentError(
            "levels must be different layers of the backbone with feature maps, such as "
            f"{', '.join(near or list(maps)[-1:])}. Received: levels={levels}"
        )
    return {level: maps[level] for level in levels}


def classifier_model(
    embedding: keras.Model,
    num_classes: int,
    dropout: float = 0.0,
    seed: int | None = 0,
    name: str = "classifier",
) -> keras.Model:
    """An embedding model with dropout and a linear classifier whose weights start at zero.

    Examples:
        >>> inputs = keras.Input((4,))
        >>> embedding = keras.Model(inputs, keras.layers.Dense(2)(inputs))
        >>> model = classifier_model(embedding, num_classes=10, dropout=0.5)
        >>> model.output_shape
        (None, 10)

    Args:
        embedding: a functional or sequential `keras.Model` from images to embeddings `[n, d]`.
        num_classes: K, the training classes.
        dropout: rate in [0, 1) on the embeddings.
        seed: of the dropout masks.
        name: the model's name.

    Returns:
        A `keras.Model` from images to logits `[n, K]`, sharing the layers of `embedding`.

    Raises:
        ValueError: `embedding` does not give `[n, d]`, fewer than 2 classes, or a rate outside
            [0, 1).

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
