"""An embedding model in two: what is frozen of it, and the head that learns on its features."""

import keras

from keras_dml.errors import ArgumentError

__all__ = ["split_at_features"]


def split_at_features(embedding: keras.Model) -> tuple[keras.Model, keras.Model]:
    """The frozen part of an embedding model, up to its pooled features, and all that comes behind.

    Where the pooling itself learns (GeM's exponent), it belongs to the second, and the features are
    what it pools.

    Args:
        embedding: as `embedding_model` makes it without levels; its backbone does not train.

    Returns:
        `(trunk, head)`, which share the layers of `embedding`: from images to features `[n, c]` (or
        maps `[n, h, w, c]`, or tokens `[n, t, c]`), and from these to embeddings `[n, d]`.
        `head(trunk(images))` is `embedding(images)`.

    Raises:
        ValueError: the model has no layer `features`, or something before it learns (names it).

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
            "embedding must have one layer `features`, as keras_dml.models.embedding_model makes "
            f"it without levels. Received: embedding={embedding.name!r}, a model without"
        )
    features = pools[0].input if pools[0].trainable_variables else pools[0].output
    trunk = keras.Model(embedding.input, features, name="trunk")
    if trunk.trainable_variables:
        learning = trunk.trainable_variables[0].path
        raise ArgumentError(
            "embedding must have a backbone that does not train (backbone.trainable = False). "
            f"Received: embedding={embedding.name!r}, in which {learning} does"
        )
    return trunk, keras.Model(features, embedding.output, name="head")
