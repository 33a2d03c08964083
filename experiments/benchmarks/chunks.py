"""One training step measured in a process of its own; `experiments.benchmark` starts it."""

import json
import sys
import time

import keras
import numpy as np
import tensorflow as tf

from experiments.benchmarks.process import peak_megabytes, resident_megabytes
from experiments.options.child import end_with_parent
from keras_dml import losses, models

IMAGES_PER_CLASS = 4
EMBEDDING_SIZE = 128


def main(backbone: str, image_size: int, batch_size: int, chunk_size: int) -> None:
    """Print a JSON object: seconds of the step, megabytes held before it and at most in all.

    Args:
        backbone: with random weights and batch norm on stored statistics.
        image_size, batch_size: of the images.
        chunk_size: images at once; 0: the plain step.
    """
    keras.utils.set_random_seed(0)
    trunk = models.build_backbone(backbone, image_size, None, frozen_batch_norm=True)
    model = models.embedding_model(trunk, EMBEDDING_SIZE)
    if chunk_size:
        model = models.CachedGradients(model, chunk_size)
    # XLA keeps all that its compiler used; without it the step alone is seen.
    model.compile("sgd", losses.MultiSimilarityLoss(), jit_compile=False)
    shape = (batch_size, image_size, image_size, 3)
    # Without a temporary table, which would raise the peak or be counted as held before.
    pixels = np.random.default_rng(0).random(shape, dtype=np.float32)
    pixels *= 255
    images = tf.constant(pixels)
    del pixels
    class_ids = tf.constant(np.arange(batch_size) // IMAGES_PER_CLASS)
    before = resident_megabytes()
    start = time.perf_counter()
    loss = float(tf.function(model.train_step)((images, class_ids))["loss"])
    seconds = time.perf_counter() - start
    held = {"before": before, "peak": peak_megabytes()}
    print(json.dumps({"seconds": seconds, **held, "loss": loss}))


if __name__ == "__main__":
    end_with_parent()
    name, *numbers = sys.argv[1:]
    main(name, *map(int, numbers))
