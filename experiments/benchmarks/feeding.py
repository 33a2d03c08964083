"""Images a second that `fit` is fed: by tf.data, and by a PyDataset that has Pillow make them.

A process of its own for each backend; `experiments.benchmark` starts it and reads it.
"""

import json
import multiprocessing
import os
import pathlib
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from experiments.benchmarks.pil import PilTransform, pil_batch
from experiments.benchmarks.process import json_rows
from experiments.options.child import end_with_parent

__all__ = ["FEEDS", "Fed", "fed_images"]

FEEDS = ("tf.data", "threads", "processes")
"""tf.data, and a PyDataset in as many threads or processes as there are cores."""
ROUNDS = 3
IMAGES_PER_ROUND = 2_048
# Batches before the clock runs: what is compiled, and more than any of the three has ready.
_AHEAD = 12


class Fed(NamedTuple):
    """What a process is given.

    Attributes:
        table, sampler, transform, seed: as of `pipelines.training_batches`.
        images, pil: the images and what is done to them, for Pillow.
    """

    table: Any
    sampler: Any
    transform: Any
    seed: int
    images: Sequence[str | bytes]
    pil: PilTransform


def fed_images(backend: str, fed: Fed) -> Iterator[dict[str, float]]:
    """Yields one row: by each of `FEEDS` images a second."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "fed")
        path.write_bytes(pickle.dumps(fed))
        yield from json_rows("experiments.benchmarks.feeding", str(path), KERAS_BACKEND=backend)


class PilDataset(keras.utils.PyDataset):
    """The same files by Pillow; a batch an index."""

    def __init__(self, fed: Fed, batches: int, **workers: Any) -> None:
        super().__init__(**workers)
        self._images, self._boxes, self._pil = fed.images, fed.table.boxes, fed.pil
        self._labels, self._sampler = fed.table.labels, fed.sampler
        self._batches = batches

    def __len__(self) -> int:
        return self._batches

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self._sampler(index)
        batch = pil_batch(self._images, self._boxes, self._pil, index, rows.tolist())
        return batch, self._labels[rows]


class _Clock(keras.callbacks.Callback):
    """Seconds from the end of one batch on."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self._first, self._began, self.seconds = first, 0.0, 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch + 1 == self._first:
            self._began = time.perf_counter()
        self.seconds = time.perf_counter() - self._began


def _model(size: int) -> keras.Model:
    """One whose step takes no time beside its images': their mean."""
    inputs = keras.Input((size, size, 3))
    pixels = keras.layers.GlobalAveragePooling2D()(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(pixels))
    model.compile(keras.optimizers.SGD(0.0), "mse")
    return model


def main(path: str) -> None:
    """Print a JSON object: by each of `FEEDS` images a second."""
    from pipelines import training_batches

    # A process that has threads, as that of a backend, is not to be forked.
    multiprocessing.set_start_method("spawn")
    fed: Fed = pickle.loads(pathlib.Path(path).read_bytes())
    model = _model(fed.transform.image_size)
    batch_size = fed.sampler.batch_size
    measured = max(1, round(IMAGES_PER_ROUND / batch_size))
    steps = _AHEAD + measured
    rates: dict[str, list[float]] = {feed: [] for feed in FEEDS}
    for _ in range(ROUNDS):
        for feed, of_rounds in rates.items():
            clock = _Clock(_AHEAD)
            data = (
                training_batches(fed.table, fed.sampler, fed.transform, fed.seed)
                if feed == "tf.data"
                else PilDataset(
                    fed, steps, workers=os.cpu_count(), use_multiprocessing=feed == "processes"
                )
            )
            model.fit(data, steps_per_epoch=steps, shuffle=False, verbose=0, callbacks=[clock])
            of_rounds.append(measured * batch_size / clock.seconds)
    print(json.dumps({feed: statistics.median(of) for feed, of in rates.items()}), flush=True)


if __name__ == "__main__":
    end_with_parent()
    main(*sys.argv[1:])
