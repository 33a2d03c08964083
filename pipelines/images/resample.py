"""Needs TensorFlow. A window of an image, resampled to another size.

Evaluation and serving take `resample`: bilinear, antialiased, the window's fractions of a pixel
kept. That takes longer than decoding a photograph does, so random area crops, which are stretched
at random anyway, take `resample_for_training`: bilinear between pixels that the JPEG decoder has
averaged, where a crop shows fewer pixels than are stored.
"""

import functools
from collections.abc import Callable
from typing import TypeAlias, cast

import tensorflow as tf

from pipelines.images.decode import BoxedImage, EncodedImage, Image, apart
from pipelines.images.windows import Window

# The side of a square, or int32 [2], height and width.
OutputSize: TypeAlias = int | tf.Tensor

_REDUCTIONS = (1, 2, 4, 8)  # by which a JPEG can be decoded smaller


def resample(
    image: Image, resized: tf.Tensor, window: Window, output_size: OutputSize
) -> tf.Tensor:
    """Reads a window of the resized image at another size; bilinear, antialiased.

    The filter is a triangle as wide as the step between output pixels, where that is more than
    one stored pixel, renormalised at the border of the image.

    Args:
        image: `decode.EncodedImage`, `BoxedImage` or `PixelImage`.
        resized: int32 [2], height and width of the resized image that the window refers to.
        window: where the crop lies in the resized image, see `windows`.
        output_size: side of the output, or its height and width.

    Returns:
        float32 [height, width, 3], RGB in 0..255.
    """
    reached, antialiased = _antialiasing(image.size, resized, window, output_size)
    return antialiased(image.crop(reached))


def resample_for_training(
    image: Image, resized: tf.Tensor, window: Window, output_size: OutputSize
) -> tf.Tensor:
    """As `resample`, seven times as fast, with the window rounded to whole stored pixels.

    Where the output's pixels lie less than two stored ones apart, bilinear interpolation's two taps
    leave none out, and it needs no antialiasing. A JPEG with more is decoded at a half, a quarter
    or an eighth of its size, so that this holds again. What is left takes `resample`: other formats
    with more, and images enlarged more than twofold, where half a pixel is much.

    Arguments and result are those of `resample`.
    """
    whole, sides = whole_pixels(image.size, resized, window)

    def suits(reduction: int) -> tf.Tensor:
        """Less than two averaged pixels from one of the output to the next, at least a half."""
        side = reduction * tf.cast(output_size, tf.float32)
        return tf.reduce_all((sides < 2 * side) & (sides >= 0.5 * side))

    def bilinear(pixels: tf.Tensor) -> tf.Tensor:
        # Not tf.image.resize, which adds a dozen operations.
        output = tf.raw_ops.ResizeBilinear(
            images=pixels[None], size=_height_and_width(output_size), half_pixel_centers=True
        )[0]
        return _in_color(output)

    def from_pixels() -> tf.Tensor:
        reached, antialiased = _antialiasing(image.size, resized, window, output_size)
        pixels = image.crop(tf.where(suits(1), whole, reached))
        return tf.cond(suits(1), lambda: bilinear(pixels), lambda: antialiased(pixels))

    # Asked for the pixels of a JPEG only where it may be one.
    photo = cast(EncodedImage | BoxedImage, image)

    def from_jpeg() -> tf.Tensor:
        # Of two reductions that suit, the lower one shows more.
        branch = functools.partial(photo.crop_jpeg, whole, _REDUCTIONS[-1])
        for reduction in reversed(_REDUCTIONS[:-1]):
            smaller = functools.partial(photo.crop_jpeg, whole, reduction)
            branch = functools.partial(tf.cond, suits(reduction), smaller, branch)
        return bilinear(branch())

    if image.is_jpeg is False:
        return from_pixels()
    return tf.cond(
        image.is_upright_jpeg & suits(1),
        lambda: bilinear(photo.crop_upright_jpeg(whole)),
        lambda: apart(
            lambda: tf.cond(
                image.is_jpeg & tf.reduce_any([suits(reduction) for reduction in _REDUCTIONS]),
                from_jpeg,
                from_pixels,
            )
        ),
    )


def whole_pixels(
    size: tf.Tensor, resized: tf.Tensor, window: Window
) -> tuple[tf.Tensor, tf.Tensor]:
    """A window of the resized image, rounded to whole pixels of the stored image.

    Args:
        size: int32 [2], the image's, upright.
        resized, window: as of `resample`.

    Returns:
        int32 [4]: y, x, height, width, the last two at least 1; and these two as float32 [2].
    """
    start, extent = _stored(size, resized, window)
    first = tf.round(start)
    sides = tf.maximum(tf.round(start + extent) - first, 1.0)
    first = tf.minimum(first, tf.cast(size, tf.float32) - sides)
    return tf.cast(tf.concat([first, sides], 0), tf.int32), sides


def _antialiasing(
    size: tf.Tensor, resized: tf.Tensor, window: Window, output_size: OutputSize
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """The part of the stored image that `resample` needs, int32 [4], and what it makes of that."""
    start, extent = _stored(size, resized, window)
    step = extent / tf.cast(
        output_size, tf.float32
    )  # stored pixels from one output pixel to the next
    reach = 0.5 * tf.maximum(step, 1.0) + 1.0  # of the filter beyond the window
    first = tf.maximum(tf.cast(tf.floor(start - reach), tf.int32), 0)
    last = tf.minimum(tf.cast(tf.math.ceil(start + extent + reach), tf.int32), size)

    def antialiased(pixels: tf.Tensor) -> tf.Tensor:
        # What tf.image.resize(antialias=True) calls, with the window's fraction of a pixel kept.
        output = tf.raw_ops.ScaleAndTranslate(
            images=pixels[None],
            size=_height_and_width(output_size),
            scale=1.0 / step,
            translation=(tf.cast(first, tf.float32) - start) / step,
            kernel_type="triangle",
            antialias=True,
        )[0]
        return _in_color(output)

    return tf.concat([first, last - first], 0), antialiased


def _stored(size: tf.Tensor, resized: tf.Tensor, window: Window) -> tuple[tf.Tensor, tf.Tensor]:
    """The corner of a window of the resized image, and its extent, in stored pixels."""
    start, extent = window
    stored_per_resized = tf.cast(size, tf.float32) / tf.cast(resized, tf.float32)
    return start * stored_per_resized, extent * stored_per_resized


def _height_and_width(output_size: OutputSize) -> list[int] | tf.Tensor:
    return [output_size, output_size] if isinstance(output_size, int) else output_size


def _in_color(image: tf.Tensor) -> tf.Tensor:
    return tf.tile(image, [1, 1, 3]) if image.shape[-1] == 1 else image
