"""Needs TensorFlow. Limits on the cost of an image file, checked before it is decoded.

The checks are graph operations, so that a SavedModel refuses the same files as a training.
"""

import tensorflow as tf

from pipelines.images.file_bytes import big_endian, holds, is_png, is_webp, little_endian, numbers
from pipelines.max_pixels import MOST_PIXELS as MOST_PIXELS
from pipelines.max_pixels import too_large as too_large

_HEADER = 32  # bytes


def checked_pixels(
    value: tf.Tensor, height: tf.Tensor, width: tf.Tensor, max_pixels: int
) -> tf.Tensor:
    """Return `value` after a check of the size of the image to which it belongs.

    Args:
        value: Any tensor.
        height, width: Integer scalars.
        max_pixels: Most pixels that the image can have.

    Raises (when the operations run):
        tf.errors.InvalidArgumentError: The image has more than `max_pixels`.
    """
    # Floats do not overflow: a file can announce 2³¹ by 2³¹.
    pixels = tf.abs(tf.cast(height, tf.float64) * tf.cast(width, tf.float64))
    checked = tf.debugging.Assert(pixels <= max_pixels, [too_large(max_pixels)])
    with tf.control_dependencies([] if checked is None else [checked]):
        return tf.identity(value)


def announced_size(encoded: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the height and width in the header of a PNG, WebP, BMP, or GIF file, int64 scalars.

    Other files have size 0. TensorFlow's decoders read the same numbers, except for a GIF, whose
    images can be larger than its header announces. The height of a BMP can be negative.
    """
    head, webp = numbers(encoded, 0, _HEADER), is_webp(encoded)

    def little(start: int, size: int) -> tf.Tensor:
        return little_endian(head[start : start + size])

    bits = little(21, 4)  # of a lossless WebP
    sizes = [
        (is_png(encoded), big_endian(head[20:24]), big_endian(head[16:20])),
        (holds(encoded, 0, b"GIF8"), little(8, 2), little(6, 2)),
        (holds(encoded, 0, b"BM"), _signed(little(22, 4)), _signed(little(18, 4))),
        (webp & holds(encoded, 12, b"VP8X"), 1 + little(27, 3), 1 + little(24, 3)),
        (webp & holds(encoded, 12, b"VP8L"), 1 + bits // 2**14 % 2**14, 1 + bits % 2**14),
        (webp & holds(encoded, 12, b"VP8 "), little(28, 2) % 2**14, little(26, 2) % 2**14),
    ]
    height = width = tf.constant(0, tf.int64)
    for is_this, of_height, of_width in sizes:
        height = tf.where(is_this, of_height, height)
        width = tf.where(is_this, of_width, width)
    return height, width


def _signed(number: tf.Tensor) -> tf.Tensor:
    return tf.where(number < 2**31, number, number - 2**32)
