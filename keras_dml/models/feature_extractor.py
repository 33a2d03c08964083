"""An embedding model without training: a backbone and its pooled features."""

import os

import keras

from keras_dml.models.backbones import build_backbone
from keras_dml.models.head import embedding_model

__all__ = ["feature_extractor"]


def feature_extractor(
    backbone: str,
    image_size: int = 224,
    weights: str | os.PathLike[str] | None = "imagenet",
    *,
    pooling: str = "average",
    trust_code: bool = False,
) -> keras.Model:
    """Build a model from images to the pooled features of a trained backbone.

    The features are embeddings that need no training: search with them first.

    Examples:
        >>> model = feature_extractor("small_convnet", image_size=32, weights=None)
        >>> model.output_shape
        (None, 128)

    Args:
        backbone: Name of a backbone, `"hub:…"`, or the path of a `.keras` file, as in
            `build_backbone`.
        image_size: Side of the images in pixels.
        weights: Weights of the backbone, as in `build_backbone`: `"imagenet"`, `"packaged"` (only
            `"efficientnet_lite0"`, no network), a file, or None.
        pooling: Pooling of the feature maps, as in `embedding_model`.
        trust_code: Whether to run the Python code in the `Lambda` layers of a `.keras` file.

    Returns:
        A `keras.Model` from float images `[n, s, s, 3]` in 0..255 to float32 features `[n, c]`.

    Raises:
        MissingExtraError, DownloadError, ValueError: As in `build_backbone` and `embedding_model`.
    """
    model = build_backbone(backbone, image_size, weights, trust_code=trust_code)
    return embedding_model(model, pooling=pooling, name="features")
