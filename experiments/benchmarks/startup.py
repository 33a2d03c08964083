"""Start-up with as many made-up paths as Stanford Online Products has.

A process of its own, for its memory; `experiments.benchmark` starts it and reads it.
"""

import json
import statistics
import time

import numpy as np
import tensorflow as tf

import pipelines
from experiments.benchmarks.process import peak_megabytes, resident_megabytes
from experiments.options.child import end_with_parent

IMAGES, CLASSES = 120_053, 22_634
CLASSES_PER_BATCH, IMAGES_PER_CLASS = 30, 4


def main() -> None:
    """Print a JSON object: seconds and mb until batches are asked for, ms of a balanced batch."""
    # What a dataset's list would give.
    numbers = np.arange(IMAGES) * CLASSES // IMAGES
    paths = [f"Stanford_Online_Products/sofa_final/{n}_{i}.JPG" for i, n in enumerate(numbers)]
    labels = numbers.tolist()
    iter(tf.data.Dataset.range(1))  # TensorFlow itself is not measured, nor its first start
    before, began = resident_megabytes(), time.perf_counter()
    table = pipelines.ImageTable.from_paths(paths, labels)
    split = pipelines.split_by_class(table)
    sampler = pipelines.RandomSampler(len(split.train), 128)
    batches = pipelines.training_batches(split.train, sampler, pipelines.TrainTransform(224, 256))
    iter(batches)
    seconds, megabytes = time.perf_counter() - began, peak_megabytes() - before
    balanced = pipelines.BalancedSampler(table.labels, CLASSES_PER_BATCH, IMAGES_PER_CLASS)
    times = []
    for step in range(300):
        start = time.perf_counter()
        balanced(step)
        times.append(time.perf_counter() - start)
    row = {"images": IMAGES, "classes": CLASSES, "seconds": seconds, "mb": megabytes}
    print(json.dumps(row | {"ms": 1000 * statistics.median(times)}), flush=True)


if __name__ == "__main__":
    end_with_parent()
    main()
