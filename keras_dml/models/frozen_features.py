"""Splitting of an embedding model into a frozen trunk and a trainable head."""

import keras

from keras_dml._common.errors import ArgumentError


def split_at_features(embedding: keras.Model) -> tuple[keras.Model, keras.Model]:
    """Split an embedding model into its frozen part, up to the pooled features, and the rest.

    If the pooling is trainable (GeM's exponent), it belongs to the second part, and the features
    are its inputs.

    Args:
        embedding: A model from `embedding_model` without levels. Its backbone is frozen.

    Returns:
        `(trunk, head)`, which share the layers of `embedding`. The trunk maps images to features
        `[n, c]` (or maps `[n, h, w, c]`, or tokens `[n, t, c]`), and the head maps the features to
        embeddings `[n, d]`. `head(trunk(images))` equals `embedding(images)`.

    Raises:
        ValueError: The model has no layer `features`, or has trainable variables before it (the
            message names one).

    Examples:

        backbone = keras_dml.models.build_backbone("small_convnet", 32)
        backbone.trainable = False
        trunk, head = keras_dml.models.split_at_features(
            keras_dml.models.embedding_model(backbone, embedding_size=16)
        )
    """
    pools = [layer for layer in embedding.layers if layer.name == "features"]
    if not pools:
        raise ArgumentError(
            f"embedding must have a layer `features`, but got {embedding.name!r} without it. Build "
            "the model with keras_dml.models.embedding_model without levels."
        )
    features = pools[0].input if pools[0].trainable_variables else pools[0].output
    trunk = keras.Model(embedding.input, features, name="trunk")
    if trunk.trainable_variables:
        learning = trunk.trainable_variables[0].path
        raise ArgumentError(
            f"embedding must have a frozen backbone, but got {embedding.name!r}, in which "
            f"{learning} trains. Set backbone.trainable = False."
        )
    return trunk, keras.Model(features, embedding.output, name="head")
