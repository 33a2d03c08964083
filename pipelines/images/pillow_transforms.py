"""Needs Pillow. The transforms of images without TensorFlow."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image, ImageEnhance, ImageOps

from pipelines import heic
from pipelines.images.pillow_decode import open_image, orientation_of, rgb_pixels, turned_upright
from pipelines.images.transform_settings import EvaluationSettings, TrainSettings

# The bytes of an image file, or pixels, uint8 [height, width, 1 or 3]. Optionally with a box.
PillowSource: TypeAlias = bytes | np.ndarray | tuple[bytes | np.ndarray, ArrayLike]
_ATTEMPTS = 10


def augment(transform: TrainSettings, source: PillowSource, seed: ArrayLike) -> np.ndarray:
    """Return `transform.with_pillow(source, seed)`, see `TrainTransform`."""
    generator = np.random.default_rng(np.asarray(seed))
    image = _upright(source, transform.max_pixels)
    resized = _resized_size(image, transform.resize or transform.image_size)
    resizes_first = transform.crops_resized_image
    if resizes_first or any(transform.jitter):
        image = _resample(image, resized, (0, 0, *resized), resized)
    if any(transform.jitter):
        image = _jittered(image, transform, generator)
    side = transform.image_size
    if transform.crop == "area":
        window = _area_window(resized, transform, generator)
    elif transform.crop == "fixed":
        y, x = generator.integers(np.subtract(resized, side) + 1)
        window = (y, x, side, side)
    else:
        window = _central_window(resized, side)
    if resizes_first:
        # Cut the window out first, because the filter must not reach the pixels around it.
        y, x, height, width = window
        image = image.crop((x, y, x + width, y + height))
        resized, window = (height, width), (0, 0, height, width)
    output = _resample(image, resized, window, (side, side))
    if transform.flip and generator.random() < 0.5:
        output = ImageOps.mirror(output)
    return np.asarray(output, np.float32)


def center(transform: EvaluationSettings, source: PillowSource) -> np.ndarray:
    """Return `transform.with_pillow(source)`, see `EvaluationTransform`."""
    image = _upright(source, transform.max_pixels)
    resized = _resized_size(image, transform.resize or transform.image_size)
    side = transform.image_size
    window = _central_window(resized, side)
    return np.asarray(_resample(image, resized, window, (side, side)), np.float32)


def _upright(source: PillowSource, max_pixels: int) -> Image.Image:
    """Return the RGB pixels, cropped to the box and turned upright."""
    encoded, box = source if isinstance(source, tuple) else (source, None)
    if isinstance(encoded, bytes):
        opened = open_image(heic.as_png(encoded, max_pixels), max_pixels)
        orientation = orientation_of(opened)
        # TensorFlow reads no transparency from GIF and BMP.
        image = rgb_pixels(opened, "white" if opened.format in ("PNG", "WEBP") else "black")
    else:
        orientation = 1
        image = Image.fromarray(encoded[..., 0] if encoded.shape[-1] == 1 else encoded)
        image = image.convert("RGB")
    if box is not None:
        y, x, height, width = (int(number) for number in np.asarray(box))
        left, top = np.clip((x, y), 0, np.subtract(image.size, 1)).tolist()
        right = min(max(x + width, left + 1), image.width)
        bottom = min(max(y + height, top + 1), image.height)
        image = image.crop((left, top, right, bottom))
    return turned_upright(image, orientation)


def _resized_size(image: Image.Image, resize: int | tuple[int, int]) -> tuple[int, int]:
    if isinstance(resize, tuple):
        return resize
    shortest = min(image.size)
    return resize * image.height // shortest, resize * image.width // shortest


def _resample(
    image: Image.Image,
    resized: tuple[int, int],
    window: tuple[float, float, float, float],
    size: tuple[int, int],
) -> Image.Image:
    """Read a window of the resized image at another size, bilinear and antialiased.

    Args:
        image: The image before resizing.
        resized: Height and width of the resized image that the window refers to.
        window: (y, x, height, width).
        size: Height and width of the output.
    """
    y, x, height, width = window
    across, down = image.width / resized[1], image.height / resized[0]
    right = min((x + width) * across, image.width)
    bottom = min((y + height) * down, image.height)
    box = (x * across, y * down, right, bottom)
    return image.resize(size[::-1], Image.Resampling.BILINEAR, box)


def _central_window(resized: tuple[int, int], side: int) -> tuple[int, int, int, int]:
    # Python and TensorFlow both round halves to even numbers.
    y, x = (round((length - side) / 2) for length in resized)
    return y, x, side, side


def _area_window(
    resized: tuple[int, int], transform: TrainSettings, generator: np.random.Generator
) -> tuple[int, int, int, int]:
    height, width = resized
    low, high = (math.log(aspect) for aspect in transform.aspect)
    for _ in range(_ATTEMPTS):
        area = generator.uniform(*transform.area) * height * width
        aspect = math.exp(generator.uniform(low, high))
        sides = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < sides[0] <= height and 0 < sides[1] <= width:
            y, x = generator.integers(np.subtract(resized, sides) + 1)
            return int(y), int(x), *sides
    tall = max(1, round(min(height, width / transform.aspect[0])))
    wide = max(1, round(min(width, height * transform.aspect[1])))
    return (height - tall) // 2, (width - wide) // 2, tall, wide


def _jittered(
    image: Image.Image, transform: TrainSettings, generator: np.random.Generator
) -> Image.Image:
    *strengths, hue = transform.jitter
    factors = [generator.uniform(max(0.0, 1 - each), 1 + each) for each in strengths]
    shift = generator.uniform(-hue, hue)
    enhancements = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    for number in generator.permutation(4):
        if not transform.jitter[number]:
            continue
        if number < 3:
            image = enhancements[number](image).enhance(factors[number])
        else:
            hsv = np.array(image.convert("HSV"))
            # Whole levels toward 0, as in torchvision.
            hsv[..., 0] += np.uint8(int(shift * 255) % 256)
            image = Image.fromarray(hsv, "HSV").convert("RGB")
    return image
