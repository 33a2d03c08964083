"""Benchmark of the training batches of a recipe."""

import dataclasses
import functools
import statistics
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from experiments.benchmarks import measuring
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

ROUNDS = 7
IMAGES_PER_ROUND = 512
_DECODING, _OURS = "decoding the crops", "pipeline"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineOptions(SeedOptions, SamplingOptions, AugmentationOptions, DataOptions):
    """Options of `benchmark pipeline`: the options of a run that describe a training batch."""

    command = "experiments.benchmark pipeline"
    intro = """Measure the training batches of a recipe in images per second: read, decode the crop,
resize, jitter, flip, and batch, with the recipe's jitter and without jitter, on all cores.

  python -m experiments.benchmark pipeline --flagfile=cub.flags --data_dir=FOLDER

  / decoding  ratio to reading the files and decoding the same crops

The pipelines run in turns. Goal on 2 cores with CUB: 0.75 of decoding.
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
            f"dataset must have image files, not pixels in memory, but got {options.dataset}."
        )
    if bad := find_bad_images(table, decode=False):
        raise UsageError(data.not_an_image("training", table, bad))
    sampler = data.sampler(options, table, options.seed)
    transform = data.training_transform(options)
    batch_size = sampler.batch_size
    yield f"{table.num_classes:,} classes, {len(table):,} images, batches of {batch_size}"
    yield f"{'':<28}{'images/s':>10}{'/ decoding':>12}"
    rates = _rates(table, sampler, transform, options.seed)
    for name, of_rounds in rates.items():
        # The ratio of each round, because the machine's speed varies.
        ratios = [rate / decoded for rate, decoded in zip(of_rounds, rates[_DECODING])]
        yield (
            f"{name:<28}{statistics.median(of_rounds):>10,.0f}{statistics.median(ratios):>12.2f}"
        )


def _rates(
    table: "ImageTable", sampler: "Sampler", transform: "TrainTransform", seed: int
) -> dict[str, list[float]]:
    """Return the images per second of each pipeline in each round."""
    from experiments.options.progress import progress_bar
    from pipelines import training_batches

    batches = max(1, round(IMAGES_PER_ROUND / sampler.batch_size))
    images = batches * sampler.batch_size
    plain = dataclasses.replace(transform, jitter=(0.0, 0.0, 0.0, 0.0))
    runs = {
        _DECODING: _decoding(table, sampler, plain, seed),
        _OURS: training_batches(table, sampler, plain, seed),
    }
    if transform != plain:
        runs[f"{_OURS}, jitter"] = training_batches(table, sampler, transform, seed)
    iterators = {name: iter(run) for name, run in runs.items()}
    rates: dict[str, list[float]] = {name: [] for name in runs}
    with progress_bar("measuring", ROUNDS * len(runs) * images) as bar:
        for number in range(-1, ROUNDS):  # the first round warms up
            for name, iterator in iterators.items():
                next_batch = functools.partial(next, iterator)
                milliseconds = measuring.milliseconds_of_a_batch(next_batch, batches)
                # Let the pipeline prepare batches, which would lengthen the next one's time.
                time.sleep(0.1 + (measuring.AHEAD + 1) * milliseconds / 1000)
                if number >= 0:
                    rates[name].append(1000 * sampler.batch_size / milliseconds)
                    bar.update(images)
    return rates


def _decoding(
    table: "ImageTable", sampler: "Sampler", transform: "TrainTransform", seed: int
) -> "tf.data.Dataset":
    """Read the files, decode the crops of the training, and return batches of their shapes."""
    import tensorflow as tf

    from pipelines import training_batches
    from pipelines.images.decode import EncodedImage, open_image
    from pipelines.images.resample import whole_pixels
    from pipelines.images.tensorflow_transforms import draw

    def decode(source: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
        image = cast(EncodedImage, open_image(source))
        resized, window, *_ = draw(transform, image.size, numbers)
        whole, _ = whole_pixels(image.size, resized, window)
        pixels = tf.cond(image.is_jpeg, lambda: image.crop_jpeg(whole), lambda: image.crop(whole))
        return tf.shape(pixels)

    return training_batches(table, sampler, decode, seed)
