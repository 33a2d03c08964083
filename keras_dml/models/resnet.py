"""ResNet-50 v1.5, as in torchvision."""

import keras

from keras_dml._common.types import Tensor
from keras_dml.models.imagenet_scaling import imagenet_scaling

RESNET50_V1_5 = "resnet50_v1_5"


def resnet50_v1_5(image_size: int = 224, name: str = RESNET50_V1_5) -> keras.Model:
    """ResNet-50 v1.5: RGB images `[n, s, s, 3]` in 0..255 to feature maps `[n, s/32, s/32, 2048]`.

    Bottlenecks halve the resolution in their 3×3 convolution. In `keras.applications.ResNet50` (v1,
    as in He et al. 2016), the first 1×1 convolution halves it. Layers have torchvision's names with
    underscores for dots (`layer1_0_conv2`, `layer1_0_downsample_1`), and a block's output is
    `layer1_0_relu`. The model has 23,508,032 weights (25,557,032 with a classifier of 1,000
    classes), plus 53,120 stored means and variances of the batch norms.

    Args:
        image_size: s, at least 1.
        name: Name of the model.

    Reference: He et al. 2016; torchvision's `resnet50`, which Boudiaf et al. 2020 start from.
    """
    inputs = keras.Input((image_size, image_size, 3), name="images")
    x = imagenet_scaling(inputs)
    x = _convolution(x, "conv1", 64, 7, stride=2)
    x = keras.layers.ReLU(name="relu")(_norm(x, "bn1"))
    x = keras.layers.ZeroPadding2D(1, name="maxpool_pad")(x)  # 0 is the least after ReLU
    x = keras.layers.MaxPooling2D(3, 2, name="maxpool")(x)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            stride = 2 if block == 0 and stage > 0 else 1
            x = _bottleneck(x, f"layer{stage + 1}_{block}", 64 * 2**stage, stride)
    return keras.Model(inputs, x, name=name)


def _bottleneck(x: Tensor, name: str, width: int, stride: int) -> Tensor:
    shortcut = x
    if x.shape[-1] != 4 * width:  # the first of a stage
        shortcut = _convolution(x, f"{name}_downsample_0", 4 * width, 1, stride)
        shortcut = _norm(shortcut, f"{name}_downsample_1")
    layers = ((width, 1, 1), (width, 3, stride), (4 * width, 1, 1))
    for number, (filters, size, step) in enumerate(layers, start=1):
        x = _convolution(x, f"{name}_conv{number}", filters, size, step)
        x = _norm(x, f"{name}_bn{number}")
        if number < 3:
            x = keras.layers.ReLU(name=f"{name}_relu{number}")(x)
    x = keras.layers.Add(name=f"{name}_add")([x, shortcut])
    return keras.layers.ReLU(name=f"{name}_relu")(x)


def _convolution(x: Tensor, name: str, filters: int, size: int, stride: int) -> Tensor:
    # Padding "same" of Keras would pad even maps only at the far edge.
    if size > 1:
        x = keras.layers.ZeroPadding2D(size // 2, name=f"{name}_pad")(x)
    return keras.layers.Conv2D(filters, size, stride, use_bias=False, name=name)(x)


def _norm(x: Tensor, name: str) -> Tensor:
    return keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=name)(x)
