"""Needs TensorFlow. Windows: the part of a resized image that a crop shows.

A window is a pair of float32 `[2]` with whole numbers: the corner (y, x) and the extent (height,
width). These few operations take a tenth of the time of a small photo. Therefore they draw all
random numbers at once, use vectors instead of scalars, and use a split instead of slices, which
take four operations each.
"""

import math
from typing import TypeAlias

import tensorflow as tf

Window: TypeAlias = tuple[tf.Tensor, tf.Tensor]

_ATTEMPTS = 10
# Number of uniform numbers for a window: the area and aspect of each attempt, and the position.
WINDOW_NUMBERS = 2 * _ATTEMPTS + 2


def area_window(
    size: tf.Tensor, uniform: tf.Tensor, area: tuple[float, float], aspect: tuple[float, float]
) -> Window:
    """Return the window of an area crop (see `transforms.TrainTransform`).

    Args:
        size: int32 `[2]`, height and width of the image.
        uniform: float32 `[22]` in [0, 1): area fractions of ten attempts, their aspect ratios, and
            the vertical and horizontal position.
        area: Lowest and highest area fraction.
        aspect: Lowest and highest width/height.

    Returns:
        A window inside the image that is not empty.
    """
    sides = tf.cast(size, tf.float32)
    fraction, position, place = tf.split(uniform, [_ATTEMPTS, _ATTEMPTS, 2])
    # Width and height are the square root of the area, times or divided by the square root of the
    # aspect ratio.
    low, high = (0.5 * math.log(side) for side in aspect)
    stretch = tf.exp(position * (high - low) + low)
    root = tf.sqrt((fraction * (area[1] - area[0]) + area[0]) * tf.reduce_prod(sides))
    attempts = tf.stack([root / stretch, root * stretch], 1)
    # The last candidate always fits: the largest central crop within the aspect ratios.
    central = tf.minimum(sides, tf.reverse(sides, [0]) * [1 / aspect[0], aspect[1]])
    # If the image is one pixel wide or high, rounding can make the other side 0.
    crops = tf.round(tf.concat([attempts, tf.maximum(central, 1.0)[None]], 0))
    # Evaluate all attempts at once: a loop that stops early would be slower.
    fits = tf.reduce_all((crops > 0) & (crops <= sides), 1)
    chosen = tf.argmax(fits)  # the first
    extent = tf.gather(crops, chosen)
    room = sides - extent
    start = tf.where(chosen < _ATTEMPTS, _start(room, place), tf.floor(room * 0.5))
    return start, extent


def fixed_window(size: tf.Tensor, uniform: tf.Tensor, side: int) -> Window:
    """Return a window of `side` squared at the position in the last two of `uniform` `[22]`.

    With `uniform` `[b, 22]`, the corners are `[b, 2]`.
    """
    room = tf.cast(size - side, tf.float32)
    return _start(room, uniform[..., -2:]), tf.fill([2], float(side))


def central_window(size: tf.Tensor, side: int) -> Window:
    """Return the central window of `side` squared."""
    return tf.round(tf.cast(size - side, tf.float32) / 2.0), tf.fill([2], float(side))


def resized_size(size: tf.Tensor, resize: int | tuple[int, int]) -> tf.Tensor:
    """Return the height and width of an image after resizing, int32 `[2]`.

    Args:
        size: int32 `[2]`, the size of the upright image before resizing.
        resize: The exact (height, width), or the length of the shortest side. The longer side keeps
            the aspect ratio and is rounded down.
    """
    if isinstance(resize, int):
        return resize * size // tf.reduce_min(size)
    return tf.constant(resize, tf.int32)


def _start(room: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Return a random whole number in 0..room for each axis."""
    # The product can round up to `room + 1`.
    return tf.minimum(tf.floor(uniform * (room + 1.0)), room)
