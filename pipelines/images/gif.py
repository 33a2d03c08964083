"""Needs TensorFlow. The first image of a GIF file, so that the decoder never sees the others.

TensorFlow decodes all images of an animation in memory, even for only the first: a file of 200 KB
can take 8 GB. (`tf.io.decode_image` with `expand_animations=False` decodes them too: a file of
1.5 MB takes 2 GB.) Pillow does not work in a SavedModel.

A GIF is a header, an optional color table, and blocks: extensions (0x21), images (0x2C), and the
end (0x3B). The content of a block is a list of sub-blocks of 1 to 255 bytes, each after its length.
A length of 0 ends the list. (CompuServe, Graphics Interchange Format, version 89a.)
"""

import tensorflow as tf

from pipelines.images.file_bytes import numbers, part
from pipelines.images.limits import MOST_PIXELS, check_pixels

_HEADER = 13  # bytes: signature and logical screen descriptor
_DESCRIPTOR = 10  # bytes of an image descriptor, from its 0x2C
# An image of 50 million pixels has at most 300,000 full ones. The limit takes seconds to reach.
_MOST_SUB_BLOCKS = 400_000


def first_image(encoded: tf.Tensor, max_pixels: int = MOST_PIXELS) -> tf.Tensor:
    """Return a GIF file that ends after its first image.

    The image moves to the corner of the screen. TensorFlow gives the screen the size of the largest
    image, and would crop a first image that is partly outside.

    Args:
        encoded: Scalar string, the bytes of a GIF file.
        max_pixels: Most pixels that the image can have.

    Returns:
        Scalar string. If the file is damaged before the end of its first image or has no image, the
        bytes up to the damage, so that the decoder reports the error.

    Raises (when the operations run):
        tf.errors.InvalidArgumentError: The first image has more than `max_pixels`.
    """
    header = numbers(encoded, 0, _HEADER)
    content = tf.pad(tf.cast(tf.io.decode_raw(encoded, tf.uint8), tf.int64), [[0, 1]])
    start = _HEADER + _color_table(header[10])
    image, in_extension = _skip_sub_blocks(content, start, in_block=False)
    descriptor = numbers(encoded, image, _DESCRIPTOR)
    is_image = ~in_extension & (descriptor[0] == 0x2C)
    width, height = descriptor[5] + 256 * descriptor[6], descriptor[7] + 256 * descriptor[8]
    data = image + _DESCRIPTOR + _color_table(descriptor[9]) + 1  # 1: the code size
    end, in_image = _skip_sub_blocks(content, data, in_block=True)
    first = tf.strings.join(
        [
            part(encoded, 0, image + 1),
            b"\0\0\0\0",  # left and top
            part(encoded, image + 5, end - image - 5),
            b";",
        ]
    )
    damaged = part(encoded, 0, tf.where(is_image, end, image + 1))
    # Check the announced size, not the size of the file: 100 bytes can announce 4 gigapixels.
    height, width = (tf.where(is_image, side, 0) for side in (height, width))
    with tf.control_dependencies(check_pixels(height, width, max_pixels)):
        return tf.where(is_image & ~in_image, first, damaged)


def _color_table(flags: tf.Tensor) -> tf.Tensor:
    """Return the number of bytes of the color table that the flags announce."""
    size = 3 * tf.bitwise.left_shift(tf.ones_like(flags), (flags & 7) + 1)
    return tf.where(flags & 0x80 != 0, size, 0)


def _skip_sub_blocks(
    content: tf.Tensor, position: tf.Tensor, in_block: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Skip the sub-blocks of a block, or whole extensions.

    Args:
        content: int64 `[n + 1]`, the bytes of the file and a 0.
        position: int64 scalar, where the sub-blocks or the extensions start.
        in_block: True for the sub-blocks of one block, False for all extensions.

    Returns:
        The position after them, int64 scalar, and whether it is within a block, bool scalar: the
        file ends there, or has too many sub-blocks.
    """
    end = tf.size(content, tf.int64) - 1

    def has_next(position: tf.Tensor, inside: tf.Tensor) -> tf.Tensor:
        is_extension = content[tf.minimum(position, end)] == 0x21
        return (position < end) & (inside | is_extension & (not in_block))

    def skip(position: tf.Tensor, inside: tf.Tensor) -> list[tf.Tensor]:
        # Skip a sub-block, or the first two bytes of an extension.
        size = content[position]
        return [position + tf.where(inside, size + 1, 2), ~inside | (size > 0)]

    position, inside = tf.while_loop(
        has_next,
        skip,
        [position, tf.constant(in_block)],
        maximum_iterations=_MOST_SUB_BLOCKS,
    )
    return position, inside
