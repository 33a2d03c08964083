"""Needs TensorFlow. Resampling of a window of an image to another size.

Evaluation and serving use `resample`: bilinear, antialiased, with windows at fractions of a pixel.
It takes longer than decoding a photo. Random area crops, whose size is random anyway, use
`resample_for_training`: bilinear on pixels that the JPEG decoder has averaged, if the crop shows
fewer pixels than the file stores.
"""

import functools
from collections.abc import Callable
from typing import TypeAlias, cast

import tensorflow as tf

from pipelines.images.decode import BoxedImage, EncodedImage, Image, one_operation
from pipelines.images.windows import Window

# Side of a square, or height and width as int32 [2].
OutputSize: TypeAlias = int | tf.Tensor

_REDUCTIONS = (1, 2, 4, 8)  # by which the JPEG decoder can shrink an image


def resample(
    image: Image, resized: tf.Tensor, window: Window, output_size: OutputSize
) -> tf.Tensor:
    """Read a window of the resized image at another size, bilinear and antialiased.

    The filter is a triangle. It is as wide as the distance between output pixels if this is more
    than one stored pixel, and is renormalized at the border of the image.

    Args:
        image: `decode.EncodedImage`, `BoxedImage`, or `PixelImage`.
        resized: int32 `[2]`, height and width of the resized image that the window refers to.
        window: Window in the resized image, see `windows`.
        output_size: Side of the output, or its height and width.

    Returns:
        float32 [height, width, 3], RGB in 0..255.
    """
    reached, antialiased = _antialiasing(image.size, resized, window, output_size)
    return antialiased(image.crop(reached))


def resample_for_training(
    image: Image, resized: tf.Tensor, window: Window, output_size: OutputSize
) -> tf.Tensor:
    """Read a window as `resample` does, but seven times as fast and rounded to whole stored pixels.

    If output pixels are less than two stored pixels apart, bilinear interpolation skips no stored
    pixel and needs no antialiasing. If a JPEG has more pixels, it is decoded at a half, a quarter,
    or an eighth of its size, so that this is true again. All other cases use `resample`: other
    formats with more pixels, and images enlarged more than twofold, where half a pixel matters.

    Args:
        image, resized, window, output_size: As for `resample`.

    Returns:
        float32 [height, width, 3], RGB in 0..255.
    """
    whole, sides = whole_pixels(image.size, resized, window)

    def suits(reduction: int) -> tf.Tensor:
        """Return whether output pixels are from a half to less than two averaged pixels apart."""
        side = reduction * tf.cast(output_size, tf.float32)
        return tf.reduce_all((sides < 2 * side) & (sides >= 0.5 * side))

    def bilinear(pixels: tf.Tensor) -> tf.Tensor:
        # tf.image.resize would add a dozen operations.
        output = tf.raw_ops.ResizeBilinear(
            images=pixels[None], size=_height_and_width(output_size), half_pixel_centers=True
        )[0]
        return _in_color(output)

    def from_pixels() -> tf.Tensor:
        reached, antialiased = _antialiasing(image.size, resized, window, output_size)
        pixels = image.crop(tf.where(suits(1), whole, reached))
        return tf.cond(suits(1), lambda: bilinear(pixels), lambda: antialiased(pixels))

    # Only used if the image can be a JPEG.
    photo = cast(EncodedImage | BoxedImage, image)

    def from_jpeg() -> tf.Tensor:
        # If two reductions suit, the lower one shows more details.
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
        lambda: one_operation(
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
    """Convert a window of the resized image to whole pixels of the stored image.

    Args:
        size: int32 `[2]`, size of the upright image.
        resized, window: As for `resample`.

    Returns:
        int32 `[4]`: y, x, height, width, the last two at least 1. And height and width as float32
        `[2]`.
    """
    start, extent = _stored(size, resized, window)
    first = tf.round(start)
    sides = tf.maximum(tf.round(start + extent) - first, 1.0)
    first = tf.minimum(first, tf.cast(size, tf.float32) - sides)
    return tf.cast(tf.concat([first, sides], 0), tf.int32), sides


def _antialiasing(
    size: tf.Tensor, resized: tf.Tensor, window: Window, output_size: OutputSize
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """Return the part of the stored image that `resample` needs, int32 `[4]`, and its filter."""
    start, extent = _stored(size, resized, window)
    # Stored pixels from one output pixel to the next, and width of the filter outside the window.
    step = extent / tf.cast(output_size, tf.float32)
    reach = 0.5 * tf.maximum(step, 1.0) + 1.0
    first = tf.maximum(tf.cast(tf.floor(start - reach), tf.int32), 0)
    last = tf.minimum(tf.cast(tf.math.ceil(start + extent + reach), tf.int32), size)

    def antialiased(pixels: tf.Tensor) -> tf.Tensor:
        # As in tf.image.resize(antialias=True), but with windows at fractions of a pixel.
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
    """Convert the corner and the extent of a window of the resized image to stored pixels."""
    start, extent = window
    stored_per_resized = tf.cast(size, tf.float32) / tf.cast(resized, tf.float32)
    return start * stored_per_resized, extent * stored_per_resized


def _height_and_width(output_size: OutputSize) -> list[int] | tf.Tensor:
    return [output_size, output_size] if isinstance(output_size, int) else output_size


def _in_color(image: tf.Tensor) -> tf.Tensor:
    return tf.tile(image, [1, 1, 3]) if image.shape[-1] == 1 else image
