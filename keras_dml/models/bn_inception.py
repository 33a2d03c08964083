"""BN-Inception (GoogLeNet V2), with the layers of the public PyTorch checkpoint."""

import keras

from keras_dml._common.errors import argument_error
from keras_dml._common.types import Tensor

BN_INCEPTION = "bn_inception"

# Widths: 1×1, 3×3 reduce, 3×3, double 3×3 reduce, double 3×3 (both), pool projection. Blocks with
# None as first and last width halve the resolution and pass the pooled input through.
_BLOCKS = {
    "3a": (64, 64, 64, 64, 96, 32),
    "3b": (64, 64, 96, 64, 96, 64),
    "3c": (None, 128, 160, 64, 96, None),
    "4a": (224, 64, 96, 96, 128, 128),
    "4b": (192, 96, 128, 96, 128, 128),
    "4c": (160, 128, 160, 128, 160, 128),
    "4d": (96, 128, 192, 160, 192, 128),
    "4e": (None, 128, 192, 192, 256, None),
    "5a": (352, 192, 320, 160, 224, 128),
    "5b": (352, 192, 320, 192, 224, 128),
}
# Mean of the checkpoint's images in 0..255, in the order red, green, blue.
_MEAN = (128.0, 117.0, 104.0)


def bn_inception(image_size: int = 224, name: str = BN_INCEPTION) -> keras.Model:
    """BN-Inception: RGB images `[n, s, s, 3]` in 0..255 to feature maps `[n, s/32, s/32, 1024]`.

    Layers have the names of the public PyTorch port of the Caffe model (`conv1_7x7_s2`,
    `inception_3a_double_3x3_1_bn`, ...), and each block's output is a layer too:
    `inception_3c_output` (576 channels), `inception_4e_output` (1056) and `inception_5b_output`
    (1024) are the levels L, M and H of Wang et al. 2019. As in the port, convolutions have a bias
    before their batch norm. The model has 10,270,240 weights, or 11,295,240 with the port's
    classifier of 1,000 classes, plus 20,032 stored means and variances of the batch norms.

    Widths, names, padding (ceil-mode max pooling, padding that counts in average pooling, max
    pooling in 5b), epsilon 1e-5 and the means (128, 117, 104) follow the source of that port. They
    differ in places from the table in Ioffe and Szegedy 2015. The scores of its ImageNet features
    are not verified, because no checkpoint was available.

    Args:
        image_size: s, between 32 k - 1 and 32 k + 6 for a whole k, such as 224 or 227. The halving
            blocks concatenate a convolution and a pooling, whose shapes agree only for even maps.
        name: Name of the model.

    Raises:
        ValueError: `image_size` is not one of these sizes.

    Reference: Ioffe and Szegedy 2015, Batch Normalization; Wang et al. 2019, section 4.
    """
    if image_size < 31 or (image_size + 1) % 32 > 7:
        wanted = "between 32 k - 1 and 32 k + 6 for bn_inception, such as 224, 227, or 256"
        raise argument_error("image_size", wanted, image_size)
    inputs = keras.Input((image_size, image_size, 3), name="images")
    x = keras.layers.Rescaling(1.0, [-mean for mean in _MEAN], name="input_scaling")(inputs)
    x = _convolution(x, "conv1_7x7_s2", 64, 7, stride=2)
    x = _halving_pool(x, "pool1_3x3_s2")
    x = _convolution(x, "conv2_3x3_reduce", 64)
    x = _convolution(x, "conv2_3x3", 192, 3)
    x = _halving_pool(x, "pool2_3x3_s2")
    for block, widths in _BLOCKS.items():
        x = _block(x, f"inception_{block}", *widths, largest=block == "5b")
    return keras.Model(inputs, x, name=name)


def _block(
    x: Tensor,
    name: str,
    single: int | None,
    reduced: int,
    triple: int,
    double_reduced: int,
    double: int,
    projected: int | None,
    largest: bool,
) -> Tensor:
    stride = 2 if single is None else 1
    paths = [] if single is None else [_convolution(x, f"{name}_1x1", single)]
    path = _convolution(x, f"{name}_3x3_reduce", reduced)
    paths.append(_convolution(path, f"{name}_3x3", triple, 3, stride))
    path = _convolution(x, f"{name}_double_3x3_reduce", double_reduced)
    path = _convolution(path, f"{name}_double_3x3_1", double, 3)
    paths.append(_convolution(path, f"{name}_double_3x3_2", double, 3, stride))
    if projected is None:
        paths.append(_halving_pool(x, f"{name}_pool"))
    elif largest:
        pooled = keras.layers.MaxPooling2D(3, 1, padding="same", name=f"{name}_pool")(x)
        paths.append(_convolution(pooled, f"{name}_pool_proj", projected))
    else:
        # Padding "same" of Keras would exclude the padding from the averages at the border.
        padded = keras.layers.ZeroPadding2D(1, name=f"{name}_pool_pad")(x)
        pooled = keras.layers.AveragePooling2D(3, 1, name=f"{name}_pool")(padded)
        paths.append(_convolution(pooled, f"{name}_pool_proj", projected))
    return keras.layers.Concatenate(name=f"{name}_output")(paths)


def _convolution(x: Tensor, name: str, filters: int, size: int = 1, stride: int = 1) -> Tensor:
    # Padding "same" of Keras would pad even maps only at the far edge.
    if stride > 1:
        x = keras.layers.ZeroPadding2D(size // 2, name=f"{name}_pad")(x)
    padding = "same" if stride == 1 else "valid"
    x = keras.layers.Conv2D(filters, size, stride, padding, name=name)(x)
    x = keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_bn")(x)
    return keras.layers.ReLU(name=f"{name}_relu")(x)


def _halving_pool(x: Tensor, name: str) -> Tensor:
    """Apply 3×3 max pooling with stride 2 in ceil mode: the last window may exceed the map."""
    padding = "valid" if x.shape[1] % 2 else "same"
    return keras.layers.MaxPooling2D(3, 2, padding=padding, name=name)(x)
