"""Needs TensorFlow. Color jitter with precomputed random numbers."""

from collections.abc import Sequence

import tensorflow as tf

JITTER_NUMBERS = 8  # number of uniform numbers for `jitter_colors`
_GRAY_WEIGHTS = (0.299, 0.587, 0.114)  # of red, green, blue (ITU-R BT.601)


def jitter_colors(image: tf.Tensor, uniform: tf.Tensor, jitter: Sequence[float]) -> tf.Tensor:
    """Jitter the colors of an image (see `TrainTransform`).

    Args:
        image: float32 `[height, width, 3]`, RGB in 0..255.
        uniform: float32 `[8]` in [0, 1): positions of the factors in their ranges (brightness,
            contrast, saturation, hue), and four keys that sort the operations.
        jitter: The four strengths. Operations with strength 0 are not in the graph.

    Returns:
        float32 `[height, width, 3]` in 0..255.
    """
    adjust = (_adjust_brightness, _adjust_contrast, _adjust_saturation, _adjust_hue)
    used = [number for number, strength in enumerate(jitter) if strength > 0]
    if not used:
        return image
    low = [-jitter[3] if n == 3 else max(0.0, 1.0 - jitter[n]) for n in used]
    high = [jitter[3] if n == 3 else 1.0 + jitter[n] for n in used]
    position, key = tf.unstack(tf.gather(tf.reshape(uniform, [2, 4]), used, axis=1))
    factors = low + position * [above - below for below, above in zip(low, high)]
    order = tf.argsort(key)
    for place in range(len(used)):

        def branch(slot: int, image: tf.Tensor = image) -> tf.Tensor:
            adjusted = adjust[used[slot]](image, factors[slot])
            return tf.clip_by_value(adjusted, 0.0, 255.0)

        branches = [lambda slot=slot, branch=branch: branch(slot) for slot in range(len(used))]
        image = tf.switch_case(order[place], branches)
    return image


def _adjust_brightness(image: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    return image * factor


def _adjust_contrast(image: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Blend with the mean of the gray image."""
    gray = tf.tensordot(tf.reduce_mean(image, [0, 1]), tf.constant(_GRAY_WEIGHTS), 1)
    return image * factor + (1.0 - factor) * gray


def _adjust_saturation(image: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Blend each pixel with its gray value."""
    # Linear in the color, so this is a product with a 3 by 3 matrix.
    gray = tf.tile(tf.constant(_GRAY_WEIGHTS)[:, None], [1, 3])
    return tf.tensordot(image, factor * tf.eye(3) + (1.0 - factor) * gray, 1)


def _adjust_hue(image: tf.Tensor, shift: tf.Tensor) -> tf.Tensor:
    # tf.image.adjust_hue would add checks. The hue does not depend on the range of the values.
    return tf.raw_ops.AdjustHue(images=image, delta=shift)
