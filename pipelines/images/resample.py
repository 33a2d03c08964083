"""Needs TensorFlow. Resampling of a window of an image to another size.

Evaluation and serving use `resample`: bilinear, antialiased, with windows at fractions of a pixel.
It takes longer than decoding a photo. Random area crops, whose size is random anyway, use
`resample_for_training`: bilinear on pixels that the JPEG decoder has averaged, if the crop shows
fewer pixels than the file stores.
"""

import functools
from collections.abc import Callable
from typing import TypeAlias, cast

import numpy as np
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
    return antialiased(image.crop(reached)[None])[0]


def resample_pixels(
    pixels: tf.Tensor,
    resized: tuple[int, int],
    windows: Window,
    output_size: int,
    mirrored: tf.Tensor | None = None,
) -> tf.Tensor:
    """Read a window of each image of a batch. Each result has the same bits as from `resample`.

    TensorFlow's operation takes the same window of all images, and most of its time is not
    arithmetic. Here, each axis is a sum of a few weighted rows, in the order of that operation.

    Args:
        pixels: uint8 `[b, height, width, 1 or 3]`, with a static height and width.
        resized: Height and width of the resized images.
        windows: Corners of the windows, float32 `[b, 2]`, and their extent, `output_size` squared.
        output_size: Side of the output.
        mirrored: Bool `[b]`, the images to mirror left to right, or None.

    Returns:
        float32 `[b, output_size, output_size, 3]`, RGB in 0..255.
    """
    starts = tf.unstack(tf.cast(windows[0], tf.int32), axis=1)
    images = pixels
    for axis, (stored, side, start) in enumerate(zip(pixels.shape[1:3], resized, starts)):
        with tf.init_scope():
            places, weights = _weighted_rows(stored, side, output_size)
        places, weights = tf.gather(places, start), tf.gather(weights, start)
        if axis == 1 and mirrored is not None:
            places, weights = (
                tf.where(mirrored[:, None, None], tf.reverse(each, [1]), each)
                for each in (places, weights)
            )
        images = tf.transpose(_sum_of_rows(images, places, weights), [0, 2, 1, 3])
    return _in_color(images)


@functools.lru_cache(maxsize=64)
def _weighted_rows(stored: int, resized: int, output_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that `resample` adds for each corner, and their weights.

    Args:
        stored, resized: Length of an axis in the stored and in the resized image.
        output_size: Length of the output.

    Returns:
        int32 and float32 `[corners, output_size, rows]`.
    """
    identity = tf.eye(stored, dtype=tf.uint8)[None, :, :, None]
    all_weights = []
    with tf.device("CPU"):
        for start in range(resized - output_size + 1):
            reached, antialiased = _antialiasing(
                tf.constant([stored, stored]),
                tf.constant([resized, stored]),
                (tf.constant([float(start), 0.0]), tf.constant([float(output_size), stored])),
                tf.constant([output_size, stored]),
            )
            y, _, height, _ = reached.numpy()
            all_weights.append(antialiased(identity[:, y : y + height])[0, :, :, 0].numpy())
    weights = np.stack(all_weights)
    used = weights != 0
    first = used.argmax(-1)
    number = (stored - used[..., ::-1].argmax(-1) - first).max()
    places = np.minimum(first[..., None] + np.arange(number), stored - 1)
    chosen = np.take_along_axis(weights, places, -1)
    # A row that is repeated at the border has the weight 0 after its first place.
    chosen[first[..., None] + np.arange(number) >= stored] = 0
    return places.astype(np.int32), chosen


def _sum_of_rows(images: tf.Tensor, places: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Return weighted sums of rows.

    Args:
        images: `[b, height, width, channels]`.
        places, weights: int32 and float32 `[b, output_height, rows]`.

    Returns:
        float32 `[b, output_height, width, channels]`.
    """
    total = None
    for row in range(places.shape[-1]):
        part = tf.gather(images, places[:, :, row], batch_dims=1)
        part = tf.cast(part, tf.float32) * weights[:, :, row, None, None]
        total = part if total is None else total + part
    return total


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
        )
        return _in_color(output)[0]

    def from_pixels() -> tf.Tensor:
        reached, antialiased = _antialiasing(image.size, resized, window, output_size)
        pixels = image.crop(tf.where(suits(1), whole, reached))
        return tf.cond(suits(1), lambda: bilinear(pixels), lambda: antialiased(pixels[None])[0])

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

    def read() -> tf.Tensor:
        reducible = tf.reduce_any([suits(reduction) for reduction in _REDUCTIONS])
        return tf.cond(image.is_jpeg & reducible, from_jpeg, from_pixels)

    return read() if tf.executing_eagerly() else one_operation(read)()


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
            images=pixels,
            size=_height_and_width(output_size),
            scale=1.0 / step,
            translation=(tf.cast(first, tf.float32) - start) / step,
            kernel_type="triangle",
            antialias=True,
        )
        return _in_color(output)

    return tf.concat([first, last - first], 0), antialiased


def _stored(size: tf.Tensor, resized: tf.Tensor, window: Window) -> tuple[tf.Tensor, tf.Tensor]:
    """Convert the corner and the extent of a window of the resized image to stored pixels."""
    start, extent = window
    stored_per_resized = tf.cast(size, tf.float32) / tf.cast(resized, tf.float32)
    return start * stored_per_resized, extent * stored_per_resized


def _height_and_width(output_size: OutputSize) -> list[int] | tf.Tensor:
    return [output_size, output_size] if isinstance(output_size, int) else output_size


def _in_color(images: tf.Tensor) -> tf.Tensor:
    return tf.tile(images, [1, 1, 1, 3]) if images.shape[-1] == 1 else images
