"""One function for every model with trained weights."""

import pathlib

import keras

from keras_dml._common.errors import argument_error
from keras_dml._common.types import StrPath
from keras_dml.models import hub, keras_files
from keras_dml.models.backbones import (
    build_backbone,
    feature_extractor,
    is_backbone,
    native_image_size,
)
from keras_dml.models.from_hub import from_hub

_DEFAULT_SIZE = 224


def from_preset(
    name: StrPath,
    image_size: int | None = None,
    weights: StrPath | None = "imagenet",
    *,
    pooling: str | None = None,
    revision: str | None = None,
    trust_code: bool = False,
) -> keras.Model:
    """Load a trained model by the name of a backbone, a preset, a file, a folder, or a repository.

    | `name` | model | function |
    | --- | --- | --- |
    | `"resnet50"`, a backbone of `backbone_names` | backbone | `build_backbone` |
    | `"hub:dinov2_base"`, a preset or folder of KerasHub | backbone | `build_backbone` |
    | either of the two, with `pooling` | embeddings | `feature_extractor` |
    | `"model.keras"`, a file | the saved model | `load_keras_file` |
    | `"model.keras"`, with `image_size` | backbone | `build_backbone` |
    | `"model.keras"`, with `image_size` and `pooling` | embeddings | `feature_extractor` |
    | a folder with `model.keras`, from `keras-dml export` | embeddings | `from_hub` |
    | `"USER/NAME"`, a repository of the Hugging Face Hub | embeddings | `from_hub` |

    A backbone maps images to feature maps, tokens, or vectors. Give it to `embedding_model` to
    train an embedding. The name of a backbone comes before a folder of the same name. Write
    `"./resnet50"` for the folder.

    Examples:
        >>> backbone = from_preset("small_convnet", image_size=32, weights=None)
        >>> backbone.output_shape
        (None, 4, 4, 128)
        >>> embedding = from_preset("small_convnet", 32, weights=None, pooling="average")
        >>> embedding.output_shape
        (None, 128)

    Args:
        name: As in the table.
        image_size: Side of the images in pixels. None: the size of the backbone's weights, 224 for
            a preset, or the size of the saved model.
        weights: Weights of a backbone, as in `build_backbone`. Files, folders, and repositories
            include their weights.
        pooling: Pooling of a backbone's feature maps, as in `embedding_model`. None: no pooling.
        revision: Branch, tag, or commit of a repository. None: the default branch.
        trust_code: As in `load_keras_file`.

    Returns:
        The uncompiled model, from images float32 `[n, s, s, 3]` in 0..255.

    Raises:
        MissingExtraError: A package for the preset, the weights, or the repository is missing.
        DownloadError: The weights cannot be downloaded.
        ValueError: `name` is none of the forms, an argument does not apply to its form, or as in
            the function of the table.
    """
    text, others = str(name), None if weights == "imagenet" else weights
    if _is_repository(name):
        _refuse(text, image_size=image_size, weights=others, pooling=pooling)
        return from_hub(name, revision, trust_code)
    _refuse(text, revision=revision)
    if image_size is None and text.endswith(keras_files.ENDING):
        _refuse(f"{text} without image_size", weights=others, pooling=pooling)
        return keras_files.load_keras_file(name, trust_code)
    size = image_size
    if size is None:
        size = native_image_size(text) or _DEFAULT_SIZE
    if pooling is None:
        return build_backbone(text, size, weights, trust_code=trust_code)
    return feature_extractor(text, size, weights, pooling=pooling, trust_code=trust_code)


def _is_repository(name: StrPath) -> bool:
    """Return whether a name is a folder or USER/NAME, not a backbone, a preset, or a file."""
    text = str(name)
    if text.startswith(hub.PREFIX) or is_backbone(text):
        return False
    is_file = text.endswith(keras_files.ENDING)
    return pathlib.Path(text).expanduser().is_dir() or ("/" in text and not is_file)


def _refuse(form: str, **arguments: object) -> None:
    """Raise an error for an argument that does not apply."""
    for argument, value in arguments.items():
        if value is not None:
            raise argument_error(argument, f"left out for {form}", value)
