"""Normalization of images in 0..255 for PyTorch networks: ImageNet means and deviations."""

import keras

from keras_dml._common.types import Tensor

# Of the red, green, and blue of ImageNet images in 0..1.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def imagenet_scaling(images: Tensor) -> Tensor:
    """Compute `(x / 255 − mean) / std` for each color in a layer `input_scaling`. Keeps the
    shape."""
    return keras.layers.Rescaling(
        [1 / (255 * std) for std in STD],
        [-mean / std for mean, std in zip(MEAN, STD)],
        name="input_scaling",
    )(images)
