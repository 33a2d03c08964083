"""Training batches the usual way: a pool of processes, Pillow, torchvision's transforms.

Imports neither TensorFlow nor PyTorch, so that a worker starts quickly and has its core to itself.
"""

import concurrent.futures
import dataclasses
import io
import math
import multiprocessing
import random
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageEnhance

_CROP_ATTEMPTS = 10
_ENHANCE = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)


@dataclasses.dataclass(frozen=True)
class PilTransform:
    """What is done to an image; the fields are among those of `pipelines.TrainTransform`.

    An area crop is cut out of the stored image, which saves a resize. With jitter the whole image
    is resized first.
    """

    image_size: int
    resize: int | tuple[int, int] | None
    crop: str
    area: tuple[float, float]
    aspect: tuple[float, float]
    flip: bool
    jitter: tuple[float, float, float, float]


def as_pil(transform: object) -> PilTransform:
    """The same of `pipelines.TrainTransform`."""
    names = [field.name for field in dataclasses.fields(PilTransform)]
    return PilTransform(**{name: getattr(transform, name) for name in names})


class PilPool:
    """Makes batches as PyTorch's DataLoader does: each worker a whole batch at a time.

    The batches stay in their workers, which spares this yardstick their way to the trainer.

    Args:
        images: paths, or the bytes of image files.
        boxes: integers [n, 4] (y, x, height, width) that the images are cut down to, or None.
        workers: how many processes.
        transform: what they do to an image.
    """

    def __init__(
        self,
        images: Sequence[str | bytes],
        boxes: np.ndarray | None,
        workers: int,
        transform: PilTransform,
    ) -> None:
        self._pool = concurrent.futures.ProcessPoolExecutor(
            workers,
            multiprocessing.get_context("spawn"),
            _begin,
            (images, boxes, transform),
        )

    def make(self, batches: Sequence[Sequence[int]]) -> int:
        """Makes batches of the given rows (a list of lists), waits for all; how many images."""
        return sum(self._pool.map(_batch, *zip(*enumerate(batches))))

    def close(self) -> None:
        """Ends the workers."""
        self._pool.shutdown()


def transformed(image: Image.Image, rng: random.Random, transform: PilTransform) -> np.ndarray:
    """One augmented image, float32 [image_size, image_size, 3]."""
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
    """Left, top, width and height of torchvision's `RandomResizedCrop`."""
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


# What a worker makes batches of: images, boxes, transform; set when it begins.
_job: tuple[Sequence[str | bytes], np.ndarray | None, PilTransform]


def _begin(
    images: Sequence[str | bytes], boxes: np.ndarray | None, transform: PilTransform
) -> None:
    global _job
    _job = images, boxes, transform


def _batch(number: int, rows: Sequence[int]) -> int:
    return len(pil_batch(*_job, number, rows))


def pil_batch(
    images: Sequence[str | bytes],
    boxes: np.ndarray | None,
    transform: PilTransform,
    number: int,
    rows: Sequence[int],
) -> np.ndarray:
    """Batch `number`, float32 `[n, image_size, image_size, 3]`; the rest as of `PilPool`."""
    rng = random.Random(number)
    made = []
    for row in rows:
        source = images[row]
        stored = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)
        image = stored.convert("RGB")
        if boxes is not None:
            y, x, height, width = boxes[row]
            image = image.crop((x, y, x + width, y + height))
        made.append(transformed(image, rng, transform))
    return np.stack(made)
