"""Benchmark of large batches in chunks."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from experiments.benchmarks import measuring
from experiments.options import Options, option

EMBEDDING_SIZE, IMAGES_PER_CLASS = 128, 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChunksOptions(Options):
    """Options of `benchmark chunks`.

    Attributes:
        backbone: Backbone.
        image_size: Height and width of the images.
        batch_size: Images of the large batch.
        chunk_size: Images of a chunk.
    """

    group = "Measured"

    command = "experiments.benchmark chunks"
    intro = """Measure the memory of a training step of a large batch in chunks (--chunk_size of a
run), next to a plain step of one chunk.

  python -m experiments.benchmark chunks [--batch_size=512] [--chunk_size=32]

Random weights, batch norm with stored statistics, each step in a new process.

  s       seconds of the first step, which builds the graph
  before  megabytes before the step: TensorFlow, the model, and the images
  MB      peak megabytes
"""

    backbone: str = option("resnet50")
    image_size: int = option(224, lower_bound=8)
    batch_size: int = option(512, lower_bound=2)
    chunk_size: int = option(32, lower_bound=2)


def measure(options: ChunksOptions) -> Iterator[str]:
    """Yield the lines of the table."""
    yield f"{'batch':>6}{'chunk':>8}{'s':>8}{'before':>8}{'MB':>8}"
    plain, in_chunks = (options.chunk_size, 0), (options.batch_size, options.chunk_size)
    for sizes in (plain, in_chunks):
        for row in measuring.child_rows(measure_step, options.backbone, options.image_size, *sizes):
            numbers = f"{row['s']:>8.1f}{row['before']:>8.0f}{row['MB']:>8.0f}"
            yield f"{sizes[0]:>6}{sizes[1] or '–':>8}{numbers}"


def measure_step(
    backbone: str, image_size: int, batch_size: int, chunk_size: int
) -> Iterator[measuring.Row]:
    """Yield the row of one step. A chunk size of 0 is a plain step."""
    import keras

    from keras_dml import losses, models

    keras.utils.set_random_seed(0)
    trunk = models.build_backbone(backbone, image_size, None, frozen_batch_norm=True)
    model = models.embedding_model(trunk, EMBEDDING_SIZE)
    if chunk_size:
        model = models.CachedGradients(model, chunk_size)
    # The compiler of XLA would raise the peak of TensorFlow. JAX always compiles.
    model.compile("sgd", losses.MultiSimilarityLoss(), jit_compile=keras.backend.backend() == "jax")
    shape = (batch_size, image_size, image_size, 3)
    # In place, because a temporary array would raise the peak.
    pixels = np.random.default_rng(0).random(shape, dtype=np.float32)
    pixels *= 255
    images = keras.ops.convert_to_tensor(pixels)
    del pixels
    class_ids = np.arange(batch_size) // IMAGES_PER_CLASS
    before = measuring.resident_megabytes()
    seconds, _ = measuring.seconds_of(lambda: model.train_on_batch(images, class_ids))
    yield {"s": seconds, "before": before, "MB": measuring.peak_megabytes()}
