"""Needs TensorFlow. The first image of a GIF file, cut out before a decoder sees the others.

TensorFlow decodes every image of an animation, each at the size of the largest, also where only the
first is asked for: a file of 200 KB can take 8 GB.

A GIF is a header, perhaps a colour table, then blocks: extensions (0x21), images (0x2C), the end
(0x3B). What a block holds is cut into sub-blocks of at most 255 bytes, each behind its length; one
of length 0 is the last. (CompuServe, Graphics Interchange Format, version 89a.)
"""

import tensorflow as tf

from pipelines.images.file_bytes import length, numbers, part
from pipelines.images.limits import MOST_PIXELS, check_pixels

_HEADER = 13  # bytes: signature and logical screen descriptor
_DESCRIPTOR = 10  # bytes: an image's, from its 0x2C
_LONGEST_STEP = 256  # a full sub-block and its length
_RUN = 2**18  # bytes
_DOUBLINGS = 12
_WINDOW = 2**_DOUBLINGS  # bytes


def first_image(encoded: tf.Tensor, max_pixels: int = MOST_PIXELS) -> tf.Tensor:
    """A GIF file that ends behind its first image.

    The image is moved to the corner of the screen, because TensorFlow makes the screen as large as
    the largest image and would cut off what does not lie on it.

    Args:
        encoded: scalar string, the bytes of a GIF file.
        max_pixels: how many pixels the image may have.

    Returns:
        Scalar string. A file that is damaged before the end of its first image, or has none, comes
        back as it is: the decoder stops there too, and says why.

    Raises (where the operations run):
        tf.errors.InvalidArgumentError: the first image has more than `max_pixels`.
    """
    header = numbers(encoded, 0, _HEADER)
    image, _ = _follow(encoded, _HEADER + _color_table(header[10]), 0, extensions=True)
    descriptor = numbers(encoded, image, _DESCRIPTOR)
    is_image = descriptor[0] == 0x2C
    width, height = descriptor[5] + 256 * descriptor[6], descriptor[7] + 256 * descriptor[8]
    data = image + _DESCRIPTOR + _color_table(descriptor[9]) + 1  # 1: the code size
    end, in_block = _follow(encoded, data, 1, extensions=False)
    whole = is_image & (in_block == 0)  # else the file ends within a sub-block
    first = tf.strings.join(
        [
            part(encoded, 0, image + 1),
            b"\0\0\0\0",  # left and top
            part(encoded, image + 5, end - image - 5),
            b";",
        ]
    )
    # Not by the file's length but by its own word: a hundred bytes may announce 4 gigapixels.
    height, width = (tf.where(is_image, side, 0) for side in (height, width))
    with tf.control_dependencies(check_pixels(height, width, max_pixels)):
        return tf.where(whole, first, encoded)


def _color_table(flags: tf.Tensor) -> tf.Tensor:
    """Bytes of the colour table that such flags announce."""
    size = 3 * tf.bitwise.left_shift(tf.ones_like(flags), (flags & 7) + 1)
    return tf.where(flags & 0x80 != 0, size, 0)


def _follow(
    encoded: tf.Tensor, position: tf.Tensor | int, in_block: int, extensions: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Go from block to block, up to one that is of another kind or lies behind the file's end.

    Args:
        encoded: scalar string.
        position: int64 scalar, where to start.
        in_block: 0 if a block begins there, 1 if a sub-block of one does.
        extensions: whether to go on over extensions, or stop at the end of the first block.

    Returns:
        Position and in_block, int64 scalars, of the stop.
    """
    end = length(encoded)

    def proceed(
        position: tf.Tensor, in_block: tf.Tensor, _: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        position += in_block * _run(encoded, position)
        window = tf.io.decode_raw(part(encoded, position, _WINDOW), tf.uint8)
        stop = _last_of(_steps(tf.cast(window, tf.int32), extensions), tf.cast(in_block, tf.int32))
        # Otherwise it lies behind the window, and the walk goes on from there.
        found = stop // 2 < tf.size(window)
        return position + tf.cast(stop // 2, tf.int64), tf.cast(stop % 2, tf.int64), found

    position, in_block, _ = tf.while_loop(
        lambda position, in_block, found: tf.logical_not(found) & (position < end),
        proceed,
        [tf.cast(position, tf.int64), tf.constant(in_block, tf.int64), tf.constant(False)],
    )
    return position, in_block


def _run(encoded: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
    """Bytes taken by the sub-blocks from `position` on that are as long as the first of them.

    Nearly every file has all its sub-blocks but the last of one length.
    """
    window = tf.io.decode_raw(part(encoded, position, _RUN), tf.uint8)
    stride = tf.cast(window[0], tf.int64) + 1
    same = tf.pad(tf.cast(window[::stride] == window[0], tf.uint8), [[0, 1]])
    return tf.where(stride == 1, tf.zeros_like(stride), stride * tf.argmin(same))


def _steps(values: tf.Tensor, extensions: bool) -> tf.Tensor:
    """Where each place of a window leads: int32 [2 (n + 256)] for n bytes.

    Place 2i is byte i if a block begins there, 2i + 1 if a sub-block does. What is the end of the
    walk, or lies behind the window, leads to itself.
    """
    size = tf.size(values)
    places = 2 * tf.range(size + _LONGEST_STEP)
    here = places[:size]
    block = tf.where(values == 0x21, here + 5, here) if extensions else here  # skips its kind
    sub_block = tf.where(values == 0, here + 2, here + 2 * values + 3)
    inside = tf.stack([block, sub_block], -1)
    behind = tf.stack([places[size:], places[size:] + 1], -1)
    return tf.reshape(tf.concat([inside, behind], 0), [-1])


def _last_of(steps: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
    """The place where a walk from `start` ends.

    Each time the steps become twice as long, for all places at once: a file of the shortest
    sub-blocks takes no longer than another.
    """
    for _ in range(_DOUBLINGS):
        steps = tf.gather(steps, steps)
    return steps[start]
