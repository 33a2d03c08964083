"""Benchmark of the training batches of a recipe."""

import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from experiments.benchmarks.measuring import AHEAD
from experiments.benchmarks.pil import pil_pool
from experiments.options import Options, RunOptions, UsageError
from experiments.options.run_options import (
    AugmentationOptions,
    DataOptions,
    SamplingOptions,
    SeedOptions,
)

if TYPE_CHECKING:
    import tensorflow as tf

    from pipelines import ImageTable, TrainTransform
    from pipelines.samplers import Sampler

# Makes a number of batches.
Run: TypeAlias = Callable[[int], Any]
ROUNDS = 7
IMAGES_PER_ROUND = 512
_DECODING, _OURS, _PIL = "decoding the crops", "pipeline", "PIL"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineOptions(SeedOptions, SamplingOptions, AugmentationOptions, DataOptions):
    """Options of `benchmark pipeline`: the options of a run that describe a training batch."""

    command = "experiments.benchmark pipeline"
    intro = """Measure the training batches of a recipe in images per second: read, decode the crop,
resize, jitter, flip, and batch, with the recipe's jitter and without jitter, on all cores.

  python -m experiments.benchmark pipeline --flagfile=cub.flags --data_dir=FOLDER

  / decoding  ratio to reading the files and decoding the same crops
  / PIL       ratio to the crops and flips of torchvision on Pillow, in one process per core

The pipelines run in turns. Goals on 2 cores with CUB: 0.75 of decoding, and 2.3 times Pillow.
"""

    @classmethod
    def of_flag_files(cls) -> type[Options]:
        """Return the options of a run, because recipes have all of them."""
        return RunOptions


def measure(options: PipelineOptions) -> Iterator[str]:
    """Yield the lines of the table.

    Raises:
        UsageError: The images are in memory, or a file is not an image.
    """
    from experiments.options import data
    from pipelines import find_bad_images

    table = data.load(options).train
    if table.arrays is not None:
        raise UsageError(
            "dataset must have image files, not pixels in memory, "
            f"but got dataset={options.dataset}."
        )
    if bad := find_bad_images(table, decode=False):
        raise UsageError(data.not_an_image("training", table, bad))
    sampler = data.sampler(options, table, options.seed)
    transform = data.training_transform(options)
    batch_size = sampler.batch_size
    yield f"{table.num_classes:,} classes, {len(table):,} images, batches of {batch_size}"
    yield f"{'':<28}{'images/s':>10}{'/ decoding':>12}{'/ PIL':>8}"
    rates = _rates(table, sampler, transform, options.seed)
    for name, of_rounds in rates.items():
        line = f"{name:<28}{statistics.median(of_rounds):>10,.0f}"
        line += f"{_ratio(of_rounds, rates[_DECODING]):>12.2f}"
        if name == _OURS:
            line += f"{_ratio(of_rounds, rates[_PIL]):>8.2f}"
        yield line


def _ratio(rates: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of the ratios of each round, because the machine's speed varies."""
    return statistics.median(rate / other for rate, other in zip(rates, others))


def _rates(
    table: "ImageTable", sampler: "Sampler", transform: "TrainTransform", seed: int
) -> dict[str, list[float]]:
    """Return the images per second of each pipeline in each round."""
    from experiments.options.progress import progress_bar
    from pipelines import training_batches

    workers = os.cpu_count() or 1
    # Each Pillow worker makes whole batches.
    batches = workers * max(1, round(IMAGES_PER_ROUND / sampler.batch_size / workers))
    images = batches * sampler.batch_size
    plain = dataclasses.replace(transform, jitter=(0.0, 0.0, 0.0, 0.0))
    with pil_pool(table, sampler, plain, workers) as make:
        runs: dict[str, Run] = {
            _DECODING: _run(_decoding(table, sampler, plain, seed)),
            _OURS: _run(training_batches(table, sampler, plain, seed)),
            _PIL: make,
        }
        if transform != plain:
            runs[f"{_OURS}, jitter"] = _run(training_batches(table, sampler, transform, seed))
        rates: dict[str, list[float]] = {name: [] for name in runs}
        with progress_bar("measuring", ROUNDS * len(runs) * images) as bar:
            for number in range(-1, ROUNDS):  # the first round warms up
                for name, run in runs.items():
                    # Use the batches that are ready, which would shorten the time.
                    run(0 if name == _PIL else AHEAD)
                    start = time.perf_counter()
                    run(batches)
                    seconds = time.perf_counter() - start
                    # Let the pipeline prepare batches, which would lengthen the next one's time.
                    time.sleep(0.1 + (AHEAD + 1) * seconds / batches)
                    if number >= 0:
                        rates[name].append(images / seconds)
                        bar.update(images)
    return rates


def _run(dataset: "tf.data.Dataset") -> Run:
    iterator = iter(dataset)
    return lambda batches: [next(iterator) for _ in range(batches)]


def _decoding(
    table: "ImageTable", sampler: "Sampler", transform: "TrainTransform", seed: int
) -> "tf.data.Dataset":
    """Read the files, decode the crops of the training, and return batches of their shapes."""
    import tensorflow as tf

    from pipelines import training_batches
    from pipelines.images.decode import EncodedImage, open_image
    from pipelines.images.resample import whole_pixels

    def decode(source: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
        image = cast(EncodedImage, open_image(source))
        resized, window, *_ = transform.draw(image.size, numbers)
        whole, _ = whole_pixels(image.size, resized, window)
        pixels = tf.cond(image.is_jpeg, lambda: image.crop_jpeg(whole), lambda: image.crop(whole))
        return tf.shape(pixels)

    return training_batches(table, sampler, decode, seed)
