"""Needs TensorFlow. Limits on the cost of an image file, checked before it is decoded.

The checks are graph operations, so that a SavedModel refuses the same files as a training.
"""

import tensorflow as tf

from pipelines.images.file_bytes import numbers
from pipelines.max_pixels import MOST_PIXELS as MOST_PIXELS
from pipelines.max_pixels import too_large as too_large

_HEADER = 32  # bytes


def check_pixels(height: tf.Tensor, width: tf.Tensor, max_pixels: int) -> list[tf.Operation]:
    """Return the operations that must run before an image of this size is decoded.

    Args:
        height, width: Integer scalars.
        max_pixels: Most pixels that the image can have.

    Raises (when the operations run):
        tf.errors.InvalidArgumentError: The image has more than `max_pixels`.
    """
    # Floats do not overflow: a file can announce 2³¹ by 2³¹.
    pixels = tf.abs(tf.cast(height, tf.float64) * tf.cast(width, tf.float64))
    checked = tf.debugging.Assert(pixels <= max_pixels, [too_large(max_pixels)])
    return [] if checked is None else [checked]


def announced_size(encoded: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the height and width in the header of a PNG, WebP, BMP, or GIF file, int64 scalars.

    Other files have size 0. TensorFlow's decoders read the same numbers, except for a GIF, whose
    images can be larger than its header announces. The height of a BMP can be negative.
    """
    head = numbers(encoded, 0, _HEADER)
    png = _begins(head, 0, b"\x89PNG\r\n\x1a\n")
    bmp = _begins(head, 0, b"BM")
    webp = _begins(head, 0, b"RIFF") & _begins(head, 8, b"WEBP")
    bits = _little(head, 21, 4)  # of a lossless WebP
    lossy = [_little(head, start, 2) % 2**14 for start in (26, 28)]
    sizes = [
        (png, _big(head, 20, 4), _big(head, 16, 4)),
        (_begins(head, 0, b"GIF8"), _little(head, 8, 2), _little(head, 6, 2)),
        (bmp, _signed(_little(head, 22, 4)), _signed(_little(head, 18, 4))),
        (webp & _begins(head, 12, b"VP8X"), 1 + _little(head, 27, 3), 1 + _little(head, 24, 3)),
        (webp & _begins(head, 12, b"VP8L"), 1 + bits // 2**14 % 2**14, 1 + bits % 2**14),
        (webp & _begins(head, 12, b"VP8 "), lossy[1], lossy[0]),
    ]
    height = width = tf.constant(0, tf.int64)
    for is_this, of_height, of_width in sizes:
        height = tf.where(is_this, of_height, height)
        width = tf.where(is_this, of_width, width)
    return height, width


def _begins(head: tf.Tensor, start: int, expected: bytes) -> tf.Tensor:
    return tf.reduce_all(head[start : start + len(expected)] == list(expected))


def _little(head: tf.Tensor, start: int, size: int) -> tf.Tensor:
    return tf.reduce_sum(head[start : start + size] * [256**place for place in range(size)])


def _big(head: tf.Tensor, start: int, size: int) -> tf.Tensor:
    return _little(tf.reverse(head[start : start + size], [0]), 0, size)


def _signed(number: tf.Tensor) -> tf.Tensor:
    return tf.where(number < 2**31, number, number - 2**32)
