"""From a backbone to an embedding model, and from that to a classifier over its features."""

import keras

POOLINGS = ("average", "max")


def embedding_model(
    backbone, embedding_size=None, feature_batch_norm=False, pooling="average", name="embedding"
):
    """Images to embeddings: backbone, global pooling, optional batch norm, optional projection.

    Args:
        backbone: a `keras.Model` from images to feature maps `[n, h, w, c]`.
        embedding_size: d of a dense projection without activation, or None: the pooled features
            themselves are the embedding (d = c).
        feature_batch_norm: normalise the pooled features by batch norm without scale and offset.
        pooling: `"average"` or `"max"` over the map's positions.
        name: the model's name.

    Returns:
        A `keras.Model` from float images in 0..255 to float32 embeddings `[n, d]`, not normalised.

    Raises:
        ValueError: a backbone without feature maps, unknown pooling, `embedding_size` below 1.
    """
    if len(backbone.output.shape) != 4:
        raise ValueError(
            "backbone must give feature maps [n, h, w, c]. "
            f"Received: backbone.output.shape={tuple(backbone.output.shape)}"
        )
    if pooling not in POOLINGS:
        raise ValueError(f"pooling must be 'average' or 'max'. Received: pooling={pooling!r}")
    if embedding_size is not None and embedding_size < 1:
        raise ValueError(
            f"embedding_size must be None or at least 1. Received: embedding_size={embedding_size}"
        )
    pool = (
        keras.layers.GlobalAveragePooling2D
        if pooling == "average"
        else keras.layers.GlobalMaxPooling2D
    )
    x = pool(name="features")(backbone.output)
    if feature_batch_norm:
        x = keras.layers.BatchNormalization(center=False, scale=False, name="feature_norm")(x)
    if embedding_size is not None:
        x = keras.layers.Dense(embedding_size, name="projection")(x)
    # float32 whatever the precision policy: distances and the served vectors need it.
    x = keras.layers.Activation("linear", dtype="float32", name="embeddings")(x)
    return keras.Model(backbone.input, x, name=name)


def classifier_model(embedding, num_classes, dropout=0.0, seed=0, name="classifier"):
    """An embedding model with dropout and a linear classifier whose weights start at zero.

    Args:
        embedding: a `keras.Model` from images to embeddings `[n, d]`.
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
    if len(embedding.output.shape) != 2:
        raise ValueError(
            "embedding must give embeddings [n, d]. "
            f"Received: embedding.output.shape={tuple(embedding.output.shape)}"
        )
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2. Received: num_classes={num_classes}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be in [0, 1). Received: dropout={dropout}")
    x = embedding.output
    if dropout:
        x = keras.layers.Dropout(dropout, seed=seed, name="dropout")(x)
    logits = keras.layers.Dense(
        num_classes, kernel_initializer="zeros", dtype="float32", name="logits"
    )(x)
    return keras.Model(embedding.input, logits, name=name)
