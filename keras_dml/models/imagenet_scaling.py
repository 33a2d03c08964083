"""Images in 0..255 as networks of PyTorch expect them: the usual means and deviations taken off."""

import keras

from keras_dml.types import Tensor

# Of ImageNet's red, green and blue in 0..1.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def imagenet_scaling(images: Tensor) -> Tensor:
    """`(x / 255 − mean) / std` of each color, by a layer `input_scaling`; same shape."""
    return keras.layers.Rescaling(
        [1 / (255 * std) for std in STD],
        [-mean / std for mean, std in zip(MEAN, STD)],
        name="input_scaling",
    )(images)
