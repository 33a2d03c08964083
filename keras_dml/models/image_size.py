"""An embedding model or backbone for images of another size."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from keras_dml._backend.private import Functional
from keras_dml._common.checks import check_whole, shown
from keras_dml._common.errors import ArgumentError


@contextlib.contextmanager
def fitting_image_size(backbone: str, image_size: int) -> Iterator[None]:
    """Convert Keras errors about shapes to errors about the image size of a backbone."""
    try:
        yield
    except ArgumentError:
        raise
    except ValueError as error:
        raise ArgumentError(
            f"image_size must fit backbone {backbone}, but got {image_size}. "
            f"{' '.join(str(error).split())}"
        ) from error


def with_image_size(model: keras.Model, image_size: int) -> keras.Model:
    """Return a model for square images of another size that shares the layers of `model`.

    Training one of the two models trains both. Convolutions and global pooling accept any size.
    Layers with weights for each position, such as position embeddings, accept only their own size.

    Args:
        model: A functional model from images `[n, h, w, c]`.
        image_size: s, the height and width of the images, at least 1.

    Returns:
        A functional `keras.Model` from images `[n, s, s, c]`.

    Raises:
        ValueError: `model` is not a functional model from images `[n, h, w, c]`, or a layer of
            `model` does not accept images of this size.

    Reference: Touvron et al. 2019, "Fixing the train-test resolution discrepancy", which trains
    with smaller images than it tests with.

    Examples:
        >>> embedding = keras_dml.models.embedding_model(keras_dml.models.small_convnet(64), 8)
        >>> smaller = with_image_size(embedding, 48)
        >>> smaller.input_shape, smaller.variables[0] is embedding.variables[0]
        ((None, 48, 48, 3), True)
    """
    if not isinstance(model, Functional):
        raise ArgumentError(f"model must be a functional keras.Model, but got {shown(model)}.")
    image_size = check_whole("image_size", image_size, least=1)
    shape = model.input_shape
    if not isinstance(shape, tuple) or len(shape) != 4:
        raise ArgumentError(f"model must take images [n, h, w, c], but got input shape {shape}.")

    def shared(layer: Any) -> Any:
        if isinstance(layer, Functional) and layer.input_shape == shape:
            return with_image_size(layer, image_size)
        return layer

    new_shape = (image_size, image_size, shape[-1])
    images = keras.Input(new_shape, dtype=model.input.dtype, name="images")
    try:
        return keras.models.clone_model(model, input_tensors=images, clone_function=shared)
    except ValueError as error:
        raise ArgumentError(
            f"image_size must be {shape[1]} for model {model.name!r}, but got {image_size}. "
            f"A layer of the model accepts no other size: {error}"
        ) from error
