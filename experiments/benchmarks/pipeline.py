"""A recipe's training batches beside decoding alone and beside a pool of Pillow workers."""

import contextlib
import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, cast

import tensorflow as tf

from experiments.benchmarks.pil import PilPool, as_pil
from experiments.benchmarks.process import json_rows
from experiments.options.progress import progress_bar
from pipelines import ImageTable, TrainTransform, training_batches
from pipelines.images.decode import EncodedImage, open_image
from pipelines.images.resample import whole_pixels
from pipelines.samplers import Sampler

# Makes so many batches.
Run: TypeAlias = Callable[[int], None]
ROUNDS = 7
IMAGES_PER_ROUND = 512
# What a pipeline has ready before it is asked, in batches; see `_rate`.
_AHEAD = 3
_DECODING, _OURS, _PIL = "decoding the crops alone", "pipeline", "PIL"


def measure(
    table: ImageTable, sampler: Sampler, transform: TrainTransform, seed: int
) -> Iterator[str]:
    """Yields the lines of a table of images a second.

    Args:
        table: `pipelines.ImageTable` of image files.
        sampler, transform, seed: as of `pipelines.training_batches`.
    """
    workers = os.cpu_count() or 1
    # Each Pillow worker makes whole batches: as many for each of them.
    batches = workers * max(1, round(IMAGES_PER_ROUND / sampler.batch_size / workers))
    plain = dataclasses.replace(transform, jitter=(0.0, 0.0, 0.0, 0.0))
    transforms = {"": plain}
    if transform.jitter != plain.jitter:
        transforms[", jitter"] = transform
    with contextlib.ExitStack() as stack:
        make = {_DECODING: _stream(_decoding(table, sampler, plain, seed))}
        for suffix, applied in transforms.items():
            make[_OURS + suffix] = _stream(training_batches(table, sampler, applied, seed))
            pool = PilPool(images_of(table), table.boxes, workers, as_pil(applied))
            stack.callback(pool.close)
            make[_PIL + suffix] = _pool(pool, sampler)
        rates: dict[str, list[float]] = {name: [] for name in make}
        count = batches * sampler.batch_size
        total = ROUNDS * len(make) * count
        with progress_bar("measuring", total) as bar:
            for number in range(-1, ROUNDS):  # the first round warms up
                # In turns, so that a machine that slows down slows all of them.
                for name, (run, ahead) in make.items():
                    rate = _rate(run, ahead, batches, sampler.batch_size)
                    if number >= 0:
                        rates[name].append(rate)
                        bar.update(count)
    yield f"{'':<28}{'images/s':>10}{'/ decoding':>12}{'/ PIL':>8}"
    for name, of_rounds in rates.items():
        line = f"{name:<28}{statistics.median(of_rounds):>10,.0f}"
        line += f"{_ratio(of_rounds, rates[_DECODING]):>12.2f}"
        if name.startswith(_OURS):
            peer = rates[_PIL + name.removeprefix(_OURS)]
            line += f"{_ratio(of_rounds, peer):>8.2f}"
        yield line


def _ratio(rates: Sequence[float], others: Sequence[float]) -> float:
    """The median of the rounds' own ratios, since a machine is not as fast in every round."""
    return statistics.median(rate / other for rate, other in zip(rates, others))


def measure_startup() -> Iterator[str]:
    """Yields the lines that `experiments.benchmarks.startup` measures."""
    for row in json_rows("experiments.benchmarks.startup"):
        yield (
            f"start-up with {row['images']:,} images: {row['seconds']:.1f} s, {row['mb']:.0f} MB; "
            f"a balanced batch of {row['classes']:,} classes: {row['ms']:.2f} ms"
        )


def _rate(run: Run, ahead: int, batches: int, batch_size: int) -> float:
    """Images a second, once what was made ahead is used up."""
    run(ahead)
    start = time.perf_counter()
    run(batches)
    seconds = time.perf_counter() - start
    # Let it make its batches ahead again, or it would take the next one's time.
    time.sleep(0.1 + (ahead + 1) * seconds / batches)
    return batches * batch_size / seconds


def _stream(dataset: tf.data.Dataset) -> tuple[Run, int]:
    iterator = iter(dataset)

    def run(batches: int) -> None:
        for _ in range(batches):
            next(iterator)

    return run, _AHEAD


def _pool(pool: PilPool, sampler: Sampler) -> tuple[Run, int]:
    step = 0

    def run(batches: int) -> None:
        nonlocal step
        pool.make([sampler(step + number).tolist() for number in range(batches)])
        step += batches

    return run, 0  # it makes what it is asked for


def images_of(table: ImageTable) -> list[str | bytes]:
    """Paths of a table's image files, or their bytes."""
    images = table.encoded if table.paths is None else table.paths
    return [] if images is None else images.tolist()


def _decoding(
    table: ImageTable, sampler: Sampler, transform: TrainTransform, seed: int
) -> tf.data.Dataset:
    """Reads, draws and decodes the windows that a training takes, and batches their shapes."""

    def decode(source: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
        image = cast(EncodedImage, open_image(source))  # of files
        resized, window, *_ = transform.draw(image.size, numbers)
        whole, _ = whole_pixels(image.size, resized, window)
        pixels = tf.cond(image.is_jpeg, lambda: image.crop_jpeg(whole), lambda: image.crop(whole))
        return tf.shape(pixels)

    return training_batches(table, sampler, decode, seed)
