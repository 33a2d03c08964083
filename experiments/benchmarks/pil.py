"""Training batches the usual way: a pool of processes, Pillow, torchvision's transforms.

Imports neither TensorFlow nor PyTorch, so that a worker starts quickly and has its core to itself.
"""

import concurrent.futures
import io
import math
import multiprocessing
import random

import numpy as np
from PIL import Image, ImageEnhance

_CROP_ATTEMPTS = 10
_ENHANCE = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)


class PilPool:
    """Makes batches as PyTorch's DataLoader does: each worker a whole batch at a time.

    The batches stay in their workers, which spares this yardstick their way to the trainer.

    Args:
        images: paths, or the bytes of image files.
        boxes: integers [n, 4] (y, x, height, width) that the images are cut down to, or None.
        workers: how many processes.
        transform: the arguments of `transformed` but for the image and the random numbers.
    """

    def __init__(self, images, boxes, workers, transform):
        self._pool = concurrent.futures.ProcessPoolExecutor(
            workers,
            multiprocessing.get_context("spawn"),
            _begin,
            (images, boxes, transform),
        )

    def make(self, batches):
        """Makes batches of the given rows (a list of lists), waits for all; how many images."""
        return sum(self._pool.map(_batch, *zip(*enumerate(batches))))

    def close(self):
        """Ends the workers."""
        self._pool.shutdown()


def transformed(image, rng, image_size, resize, crop, area, aspect, flip, jitter):
    """One augmented image, float32 [image_size, image_size, 3].

    Args:
        image: Pillow image.
        rng: `random.Random`.
        image_size, resize, crop, area, aspect, flip, jitter: as of `pipelines.TrainTransform`. An
            area crop is cut out of the image as it is stored, which spares resizing it first.
    """
    if crop == "area":
        left, top, width, height = area_crop(*image.size, rng, area, aspect)
    else:
        image = _resized(image, resize or image_size)
        width = height = image_size
        left, top = (
            rng.randint(0, side - image_size) if crop == "fixed" else round((side - image_size) / 2)
            for side in image.size
        )
    image = image.crop((left, top, left + width, top + height))
    if crop == "area":
        image = image.resize((image_size, image_size), Image.Resampling.BILINEAR)
    if flip and rng.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(jittered(image, rng, jitter), np.float32)


def area_crop(width, height, rng, area, aspect):
    """Left, top, width and height of torchvision's `RandomResizedCrop`."""
    for _ in range(_CROP_ATTEMPTS):
        pixels = width * height * rng.uniform(*area)
        ratio = math.exp(rng.uniform(*map(math.log, aspect)))
        w, h = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, width - w), rng.randint(0, height - h), w, h
    w, h = min(width, round(height * aspect[1])), min(height, round(width / aspect[0]))
    return (width - w) // 2, (height - h) // 2, w, h


def _resized(image, resize):
    if isinstance(resize, int):
        height, width = (resize * side // min(image.size) for side in reversed(image.size))
    else:
        height, width = resize
    return image.resize((width, height), Image.Resampling.BILINEAR)


def jittered(image, rng, jitter):
    """torchvision's `ColorJitter`."""
    for kind in rng.sample(range(4), 4):
        if jitter[kind] and kind < 3:
            factor = rng.uniform(max(0.0, 1 - jitter[kind]), 1 + jitter[kind])
            image = _ENHANCE[kind](image).enhance(factor)
        elif jitter[kind]:
            hue, saturation, value = image.convert("HSV").split()
            turn = round(255 * rng.uniform(-jitter[kind], jitter[kind])) % 256
            turned = Image.fromarray(np.asarray(hue) + np.uint8(turn))
            image = Image.merge("HSV", (turned, saturation, value)).convert("RGB")
    return image


def _begin(images, boxes, transform):
    global _images, _boxes, _transform
    _images, _boxes, _transform = images, boxes, transform


def _batch(number, rows):
    rng = random.Random(number)
    images = []
    for row in rows:
        source = _images[row]
        image = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)
        image = image.convert("RGB")
        if _boxes is not None:
            y, x, height, width = _boxes[row]
            image = image.crop((x, y, x + width, y + height))
        images.append(transformed(image, rng, **_transform))
    return len(np.stack(images))
