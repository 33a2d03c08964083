"""Benchmark of training steps."""

import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from experiments.benchmarks import measuring
from experiments.benchmarks.losses import check_losses
from experiments.options import Options, option

EMBEDDING_SIZE, IMAGES_PER_CLASS = 128, 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingOptions(Options):
    """Options of `benchmark training`.

    Attributes:
        backbone: Backbone, with random weights.
        image_size: Height and width of the images.
        batch_size: Images of a batch.
        losses: Losses next to contrastive.
        mixed_precision: Compute in bfloat16.
    """

    group = "Measured"

    command = "experiments.benchmark training"
    intro = """Measure training steps with losses over pairs, and the two steps of RankMI, on the
backend that Keras uses.

  python -m experiments.benchmark training [--backbone=resnet50] [--image_size=64]

All steps train the same model on the same batch, in turns.

  ms             median milliseconds of a step
  loss, %        share of the loss: the difference to a step that sums the embeddings
  / contrastive  ratio to the step with the contrastive loss
"""

    backbone: str = option("resnet50")
    image_size: int = option(64, lower_bound=8)
    batch_size: int = option(120, lower_bound=8)
    losses: tuple[str, ...] = option(("multi_similarity", "ice"))
    mixed_precision: bool = option(False)


def measure(options: TrainingOptions) -> Iterator[str]:
    """Yield the lines of the table."""
    import keras

    from keras_dml import losses, models

    check_losses(options.losses)
    # TensorFlow reports the first traces of several models as retracing.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    if options.mixed_precision:
        keras.config.set_dtype_policy("mixed_bfloat16")
    shape = (options.batch_size, options.image_size, options.image_size, 3)
    images = np.random.default_rng(0).uniform(0, 255, shape).astype("float32")
    batch = keras.ops.convert_to_tensor(images), np.arange(options.batch_size) // IMAGES_PER_CLASS

    def embedding() -> keras.Model:
        keras.utils.set_random_seed(0)
        backbone = models.build_backbone(options.backbone, options.image_size, None)
        return models.embedding_model(backbone, EMBEDDING_SIZE)

    def step(loss: Callable[[Any, Any], Any]) -> measuring.Step:
        model = embedding()
        model.compile(keras.optimizers.Adam(1e-4), loss)
        return lambda: float(model.train_on_batch(*batch))

    rankmi = models.RankMI(embedding())
    rankmi.compile(keras.optimizers.Adam(1e-4), keras.optimizers.Adam(1e-4))

    def alternate() -> float:
        return float(rankmi.train_on_batch(*batch, return_dict=True)["loss"])

    names = dict.fromkeys(("contrastive", *options.losses))
    steps = {name: step(losses.get(name)) for name in names}
    steps["without"] = step(lambda _, z: keras.ops.sum(z, axis=-1))
    # With k = 1, every second call is a step of the statistics network.
    steps |= {"rankmi, embedding": alternate, "rankmi, statistics": alternate}
    times = measuring.milliseconds_in_turns(steps)
    title = f"{options.backbone} {options.image_size}, {keras.backend.backend()}"
    yield f"{title:<30}{'ms':>10}{'images/s':>10}{'loss, %':>9}{'/ contrastive':>15}"
    without = times.pop("without")
    for name, taken in times.items():
        share = f"{100 * (1 - without / taken):.1f}" if name in names else "–"
        yield (
            f"{name:<30}{taken:>10.1f}{1000 * options.batch_size / taken:>10.0f}"
            f"{share:>9}{taken / times['contrastive']:>15.2f}"
        )
