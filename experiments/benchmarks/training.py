"""Training steps of RankMI beside those of a contrastive loss on the same model and batch."""

from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf

from experiments.benchmarks.timing import Step, milliseconds_in_turns
from keras_dml import losses, models

BATCH, IMAGES_PER_CLASS = 120, 5
SECONDS = 5.0
# Backbone and image size.
BACKBONES = {"small_convnet": 32, "resnet50": 64}


def measure(backbone: str) -> Iterator[tuple[str, float]]:
    """Yields (step, milliseconds): contrastive first, RankMI's two behind it."""
    size = BACKBONES[backbone]
    rng = np.random.default_rng(0)
    data = (
        tf.constant(rng.uniform(0, 255, size=(BATCH, size, size, 3)).astype("float32")),
        tf.constant(np.arange(BATCH) // IMAGES_PER_CLASS),
    )

    def embedding() -> keras.Model:
        keras.utils.set_random_seed(0)
        return models.embedding_model(models.build_backbone(backbone, size, None), 128)

    contrastive = embedding()
    contrastive.compile(keras.optimizers.Adam(1e-4), losses.ContrastiveLoss(normalize=True))
    rankmi = models.RankMI(embedding())
    rankmi.compile(keras.optimizers.Adam(1e-4), keras.optimizers.Adam(1e-4))
    steps = {
        "contrastive": contrastive.train_step,
        "rankmi, embedding": rankmi.embedding_step,
        "rankmi, statistics": rankmi.statistics_step,
    }

    def call(step: Callable[..., dict[str, tf.Tensor]]) -> Step:
        run = tf.function(step)
        return lambda: float(run(data)["loss"])

    calls = {name: call(step) for name, step in steps.items()}
    yield from milliseconds_in_turns(calls, 3 * SECONDS).items()
