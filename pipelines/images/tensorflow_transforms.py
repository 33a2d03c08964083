"""Needs TensorFlow. The transforms of images as graph operations.

A transform chooses the window of the crop in the resized image, maps it back to the stored pixels,
and decodes and resamples only this part, once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import tensorflow as tf

from pipelines.images import decode
from pipelines.images.decode import Source
from pipelines.images.jitter import JITTER_NUMBERS, jitter_colors
from pipelines.images.resample import resample, resample_for_training, resample_pixels
from pipelines.images.transform_settings import EvaluationSettings, TrainSettings
from pipelines.images.windows import (
    WINDOW_NUMBERS,
    Window,
    area_window,
    central_window,
    fixed_window,
    resized_size,
)


def _shared(compute: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Make all graphs of the process share one function for each transform.

    A run builds about twenty pipelines. Tracing the function for each would take half a second.
    """

    @functools.lru_cache(maxsize=64)
    def traced(transform: TrainSettings | EvaluationSettings) -> Callable[..., tf.Tensor]:
        return tf.function(functools.partial(compute, transform), autograph=False)

    @functools.wraps(compute)
    def call(transform: TrainSettings | EvaluationSettings, *arguments: Any) -> tf.Tensor:
        if tf.executing_eagerly():
            return compute(transform, *arguments)
        return traced(transform)(*arguments)

    return call


def draw(
    transform: TrainSettings, size: tf.Tensor, seed: tf.Tensor
) -> tuple[tf.Tensor, Window, tf.Tensor, tf.Tensor]:
    """Draw the random choices for an image of a size, without its pixels.

    Args:
        transform: The transform.
        size: int32 `[2]`, height and width.
        seed: int32 or int64 `[2]`, or `[b, 2]` for a batch.

    Returns:
        `(resized, window, flip_number, jitter_numbers)`: the height and width of the resized image,
        int32 `[2]`; the window of the crop in it, see `windows`; float32 `[1]`, below 0.5 for a
        mirrored image; and float32 `[8]`, see `jitter.jitter_colors`. The results for a batch of
        seeds have a first axis `b`, except the sizes.
    """
    resized = resized_size(size, transform.resize or transform.image_size)
    seed = tf.convert_to_tensor(seed)
    # Draw all numbers at once: a random operation takes longer than its numbers.
    numbers = [WINDOW_NUMBERS, 1, JITTER_NUMBERS]
    if seed.shape.rank == 1:
        uniform = tf.random.stateless_uniform([sum(numbers)], seed)
    else:
        uniform = tf.map_fn(
            lambda each: tf.random.stateless_uniform([sum(numbers)], each),
            seed,
            fn_output_signature=tf.float32,
        )
    place, flip_number, jitter_numbers = tf.split(uniform, numbers, axis=-1)
    if transform.crop == "area":
        window = area_window(resized, place, transform.area, transform.aspect)
    elif transform.crop == "fixed":
        window = fixed_window(resized, place, transform.image_size)
    else:
        window = central_window(resized, transform.image_size)
    return resized, window, flip_number, jitter_numbers


@_shared
def augment(transform: TrainSettings, source: Source, seed: tf.Tensor) -> tf.Tensor:
    """Return `transform(source, seed)`, see `TrainTransform`."""
    image = decode.open_image(source, transform.max_pixels)
    resized, window, flip_number, jitter_numbers = draw(transform, image.size, seed)
    resizes_first = transform.crops_resized_image
    read = resample_for_training if transform.crop == "area" and not resizes_first else resample
    if resizes_first or any(transform.jitter):
        whole = read(image, resized, _whole_window(resized), resized)
        jittered = jitter_colors(whole, jitter_numbers, transform.jitter)
        image = decode.PixelImage(tf.cast(tf.round(jittered), tf.uint8))
    if resizes_first:
        # Cut the window out first, because the filter must not reach the pixels around it.
        image = decode.PixelImage(image.crop(tf.cast(tf.concat(window, 0), tf.int32)))
        resized = image.size
        window = _whole_window(resized)
    output = plain = read(image, resized, window, transform.image_size)
    if transform.flip:
        is_mirrored = tf.squeeze(flip_number < 0.5)
        output = tf.cond(is_mirrored, lambda: tf.reverse(plain, [1]), lambda: plain)
    return tf.ensure_shape(output, [transform.image_size, transform.image_size, 3])


def _whole_window(size: tf.Tensor) -> Window:
    return tf.zeros([2]), tf.cast(size, tf.float32)


@_shared
def center(transform: EvaluationSettings, source: Source) -> tf.Tensor:
    """Return `transform(source)`, see `EvaluationTransform`."""
    image = decode.open_image(source, transform.max_pixels)
    resized = resized_size(image.size, transform.resize or transform.image_size)
    window = central_window(resized, transform.image_size)
    output = resample(image, resized, window, transform.image_size)
    return tf.ensure_shape(output, [transform.image_size, transform.image_size, 3])


@_shared
def transform_batch(
    transform: TrainSettings | EvaluationSettings, pixels: tf.Tensor, *seeds: tf.Tensor
) -> tf.Tensor:
    """Transform a batch of images of one size. Each image has the same bits as from a call.

    Args:
        transform: A transform with crops of a fixed size and without jitter.
        pixels: uint8 `[b, h, w, 1 or 3]`.
        *seeds: For a `TrainTransform`, int32 or int64 `[b, 2]`.

    Returns:
        float32 `[b, image_size, image_size, 3]`, RGB in 0..255.
    """
    resized = _static_resized_size(transform, pixels)
    mirrored = None
    if seeds:
        training = cast(TrainSettings, transform)
        _, (corners, extent), flip_numbers, _ = draw(training, tf.shape(pixels)[1:3], *seeds)
        mirrored = flip_numbers[:, 0] < 0.5 if training.flip else None
    else:
        corners, extent = central_window(tf.constant(resized), transform.image_size)
    corners = tf.broadcast_to(corners, [tf.shape(pixels)[0], 2])
    return resample_pixels(pixels, resized, (corners, extent), transform.image_size, mirrored)


def _static_resized_size(
    transform: TrainSettings | EvaluationSettings, pixels: tf.Tensor
) -> tuple[int, int]:
    with tf.init_scope():
        size = tf.constant(list(pixels.shape[1:3]))
        height, width = resized_size(size, transform.resize or transform.image_size).numpy()
    return int(height), int(width)
