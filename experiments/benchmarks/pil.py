"""Training batches from a pool of processes, Pillow, and the crops of torchvision.

Imports neither TensorFlow nor PyTorch, so that a worker starts quickly.
"""

import concurrent.futures
import contextlib
import dataclasses
import io
import itertools
import math
import multiprocessing
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image

_CROP_ATTEMPTS = 10


@dataclasses.dataclass(frozen=True)
class PilTransform:
    """The fields of `pipelines.TrainTransform` that the workers need.

    An area crop is cut out of the stored image, which saves a resize.
    """

    image_size: int
    resize: int | tuple[int, int] | None
    crop: str
    area: tuple[float, float]
    aspect: tuple[float, float]
    flip: bool


@contextlib.contextmanager
def pil_pool(
    table: Any, sampler: Any, transform: Any, workers: int
) -> Iterator[Callable[[int], Any]]:
    """Start workers that make whole batches, as the DataLoader of PyTorch does.

    The batches stay in their workers, so the measured time does not include their transport.

    Args:
        table: `pipelines.ImageTable` of image files.
        sampler: Sampler of `pipelines`.
        transform: `pipelines.TrainTransform`.
        workers: Number of processes.

    Yields:
        A function that makes a number of batches.
    """
    names = [field.name for field in dataclasses.fields(PilTransform)]
    settings = PilTransform(**{name: getattr(transform, name) for name in names})
    images = table.encoded if table.paths is None else table.paths
    spawn, job = multiprocessing.get_context("spawn"), (images.tolist(), table.boxes, settings)
    numbers = itertools.count()
    with concurrent.futures.ProcessPoolExecutor(workers, spawn, _start, job) as pool:

        def make(batches: int) -> None:
            steps = list(itertools.islice(numbers, batches))
            list(pool.map(_make_batch, steps, [sampler(step).tolist() for step in steps]))

        yield make


def transformed(image: Image.Image, rng: random.Random, transform: PilTransform) -> np.ndarray:
    """Return an augmented image, float32 `[image_size, image_size, 3]`."""
    size, crop = transform.image_size, transform.crop
    if crop == "area":
        window = area_crop(*image.size, rng, transform.area, transform.aspect)
        image = image.crop(window).resize((size, size), Image.Resampling.BILINEAR)
    else:
        image = _resized(image, transform.resize or size)
        left, top = (
            rng.randint(0, side - size) if crop == "fixed" else round((side - size) / 2)
            for side in image.size
        )
        image = image.crop((left, top, left + size, top + size))
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
    """Draw left, top, right, and bottom as `RandomResizedCrop` of torchvision does."""
    for _ in range(_CROP_ATTEMPTS):
        pixels = width * height * rng.uniform(*area)
        ratio = math.exp(rng.uniform(*map(math.log, aspect)))
        w, h = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = rng.randint(0, width - w), rng.randint(0, height - h)
            return left, top, left + w, top + h
    w, h = min(width, round(height * aspect[1])), min(height, round(width / aspect[0]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def _resized(image: Image.Image, resize: int | tuple[int, int]) -> Image.Image:
    if isinstance(resize, int):
        height, width = (resize * side // min(image.size) for side in reversed(image.size))
    else:
        height, width = resize
    return image.resize((width, height), Image.Resampling.BILINEAR)


# Images, boxes, and transform of a worker, set when it starts.
_job: tuple[Sequence[str | bytes], np.ndarray | None, PilTransform]


def _start(*job: Any) -> None:
    global _job
    _job = job


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
