"""Training batches from a pool of processes, Pillow, and the transforms of torchvision.

Imports neither TensorFlow nor PyTorch, so that a worker starts quickly.
"""

import concurrent.futures
import dataclasses
import io
import math
import multiprocessing
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance

_CROP_ATTEMPTS = 10
_ENHANCE = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)


@dataclasses.dataclass(frozen=True)
class PilTransform:
    """The fields of `pipelines.TrainTransform` that the workers need.

    An area crop is cut out of the stored image, which saves a resize. With jitter, the whole image
    is resized first.
    """

    image_size: int
    resize: int | tuple[int, int] | None
    crop: str
    area: tuple[float, float]
    aspect: tuple[float, float]
    flip: bool
    jitter: tuple[float, float, float, float]


class PilPool:
    """A pool of workers that make whole batches, as the DataLoader of PyTorch does.

    The batches stay in their workers, so the measured time does not include their transport.

    Args:
        table: `pipelines.ImageTable` of image files.
        sampler: Sampler of `pipelines`.
        transform: `pipelines.TrainTransform`.
        workers: Number of processes.
    """

    def __init__(self, table: Any, sampler: Any, transform: Any, workers: int) -> None:
        names = [field.name for field in dataclasses.fields(PilTransform)]
        settings = PilTransform(**{name: getattr(transform, name) for name in names})
        images = table.encoded if table.paths is None else table.paths
        self._sampler, self._step = sampler, 0
        self._pool = concurrent.futures.ProcessPoolExecutor(
            workers,
            multiprocessing.get_context("spawn"),
            _start,
            (images.tolist(), table.boxes, settings),
        )

    def __enter__(self) -> "PilPool":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def make(self, batches: int) -> None:
        """Make a number of batches."""
        steps = range(self._step, self._step + batches)
        self._step += batches
        list(self._pool.map(_make_batch, steps, [self._sampler(step).tolist() for step in steps]))


def transformed(image: Image.Image, rng: random.Random, transform: PilTransform) -> np.ndarray:
    """Return an augmented image, float32 `[image_size, image_size, 3]`."""
    image_size, crop = transform.image_size, transform.crop
    resize = transform.resize or image_size
    if any(transform.jitter):
        image = jittered(_resized(image, resize), rng, transform.jitter)
    if crop == "area":
        left, top, width, height = area_crop(*image.size, rng, transform.area, transform.aspect)
    else:
        image = _resized(image, resize)
        width = height = image_size
        left, top = (
            rng.randint(0, side - image_size) if crop == "fixed" else round((side - image_size) / 2)
            for side in image.size
        )
    image = image.crop((left, top, left + width, top + height))
    if crop == "area":
        image = image.resize((image_size, image_size), Image.Resampling.BILINEAR)
    if transform.flip and rng.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(image, np.float32)


def area_crop(
    width: int,
    height: int,
    rng: random.Random,
    area: tuple[float, float],
    aspect: tuple[float, float],
) -> tuple[int, int, int, int]:
    """Draw left, top, width, and height as `RandomResizedCrop` of torchvision does."""
    for _ in range(_CROP_ATTEMPTS):
        pixels = width * height * rng.uniform(*area)
        ratio = math.exp(rng.uniform(*map(math.log, aspect)))
        w, h = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, width - w), rng.randint(0, height - h), w, h
    w, h = min(width, round(height * aspect[1])), min(height, round(width / aspect[0]))
    return (width - w) // 2, (height - h) // 2, w, h


def _resized(image: Image.Image, resize: int | tuple[int, int]) -> Image.Image:
    if isinstance(resize, int):
        height, width = (resize * side // min(image.size) for side in reversed(image.size))
    else:
        height, width = resize
    return image.resize((width, height), Image.Resampling.BILINEAR)


def jittered(image: Image.Image, rng: random.Random, jitter: Sequence[float]) -> Image.Image:
    """Change the colors as `ColorJitter` of torchvision does."""
    for kind in rng.sample(range(4), 4):
        if jitter[kind] and kind < 3:
            factor = rng.uniform(max(0.0, 1 - jitter[kind]), 1 + jitter[kind])
            image = _ENHANCE[kind](image).enhance(factor)
        elif jitter[kind]:
            hue, saturation, value = image.convert("HSV").split()
            shift = round(255 * rng.uniform(-jitter[kind], jitter[kind])) % 256
            shifted = Image.fromarray(np.asarray(hue) + np.uint8(shift))
            image = Image.merge("HSV", (shifted, saturation, value)).convert("RGB")
    return image


# Images, boxes, and transform of a worker, set when it starts.
_job: tuple[Sequence[str | bytes], np.ndarray | None, PilTransform]


def _start(
    images: Sequence[str | bytes], boxes: np.ndarray | None, transform: PilTransform
) -> None:
    global _job
    _job = images, boxes, transform


def _make_batch(step: int, rows: Sequence[int]) -> None:
    images, boxes, transform = _job
    rng = random.Random(step)
    batch = []
    for row in rows:
        source = images[row]
        stored = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)
        image = stored.convert("RGB")
        if boxes is not None:
            y, x, height, width = boxes[row]
            image = image.crop((x, y, x + width, y + height))
        batch.append(transformed(image, rng, transform))
    np.stack(batch)
