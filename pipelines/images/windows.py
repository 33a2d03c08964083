"""Needs TensorFlow. Which part of a resized image a crop takes.

A window is a pair of float32 [2], whole numbers: the corner (y, x) and the extent (height, width).
So few operations as these take a tenth of the time that a small photograph does: hence one draw for
an image, vectors instead of scalars, and no slice, which counts as four, where a split does.
"""

import math
from typing import TypeAlias

import tensorflow as tf

Window: TypeAlias = tuple[tf.Tensor, tf.Tensor]

_ATTEMPTS = 10
# How many uniform numbers a window takes: area and aspect for each attempt, then the place.
WINDOW_NUMBERS = 2 * _ATTEMPTS + 2


def area_window(
    size: tf.Tensor, uniform: tf.Tensor, area: tuple[float, float], aspect: tuple[float, float]
) -> Window:
    """Window of an area crop (see `transforms.TrainTransform`), from given random numbers.

    Args:
        size: int32 [2], height and width of the image.
        uniform: float32 [22] in [0, 1): the area fractions of ten attempts, their aspects, then
            the place, vertical and horizontal.
        area, aspect: (lowest, highest).

    Returns:
        The window, inside the image and not empty.
    """
    sides = tf.cast(size, tf.float32)
    fraction, position, place = tf.split(uniform, [_ATTEMPTS, _ATTEMPTS, 2])
    # Width and height are the root of the area, times and over the root of width / height.
    low, high = (0.5 * math.log(side) for side in aspect)
    stretch = tf.exp(position * (high - low) + low)
    root = tf.sqrt((fraction * (area[1] - area[0]) + area[0]) * tf.reduce_prod(sides))
    attempts = tf.stack([root / stretch, root * stretch], 1)
    # The last resort fits always: the largest central crop within the aspects.
    central = tf.minimum(sides, tf.reverse(sides, [0]) * [1 / aspect[0], aspect[1]])
    # An image of one pixel's width or height can round the other side to nothing.
    crops = tf.round(tf.concat([attempts, tf.maximum(central, 1.0)[None]], 0))
    # All attempts at once: a loop that ends early would cost more than it saves.
    fits = tf.reduce_all((crops > 0) & (crops <= sides), 1)
    chosen = tf.argmax(fits)  # the first
    extent = tf.gather(crops, chosen)
    room = sides - extent
    start = tf.where(chosen < _ATTEMPTS, _start(room, place), tf.floor(room * 0.5))
    return start, extent


def fixed_window(size: tf.Tensor, uniform: tf.Tensor, side: int) -> Window:
    """Window of `side` squared at a uniform place, taken from the last two of `uniform` [22]."""
    room = tf.cast(size - side, tf.float32)
    return _start(room, uniform[-2:]), tf.fill([2], float(side))


def central_window(size: tf.Tensor, side: int) -> Window:
    """The central window of `side` squared."""
    return tf.round(tf.cast(size - side, tf.float32) / 2.0), tf.fill([2], float(side))


def resized_size(size: tf.Tensor, resize: int | tuple[int, int]) -> tf.Tensor:
    """Height and width of an image after resizing, int32 [2].

    Args:
        size: int32 [2], the upright image's, before resizing.
        resize: (height, width) exactly, or an int, the shortest side: the longer one keeps the
            ratio, rounded down.
    """
    if isinstance(resize, int):
        return resize * size // tf.reduce_min(size)
    return tf.constant(resize, tf.int32)


def _start(room: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """A uniform place in 0..room, whole numbers."""
    # The product can round up to `room + 1`.
    return tf.minimum(tf.floor(uniform * (room + 1.0)), room)
