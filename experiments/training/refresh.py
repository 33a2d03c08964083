"""The nearest classes of a run with `--sampler=hard_classes`."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.training.features import FeatureFeed, ImageFeed
from experiments.training.plan import RunPlan
from experiments.training.workers import Workers
from keras_dml.callbacks import RefreshHardClasses
from pipelines import HardClassSampler


class RefreshOfRun(RefreshHardClasses):
    """The callback that computes the nearest classes of a run, before its checkpoint is written.

    Every worker embeds its share of the images, and receives the first worker's table.

    Args:
        run: The run.
        workers: All workers.
        feed: Computes the embeddings of the images.
        sampler: The sampler of the run.
        start_step: Number of finished steps.
    """

    def __init__(
        self,
        run: RunPlan,
        workers: Workers,
        feed: ImageFeed | FeatureFeed,
        sampler: HardClassSampler,
        start_step: int,
    ) -> None:
        options = run.options
        super().__init__(sampler, None, every=options.refresh_every, start_step=start_step)
        self._epochs, self._workers, self._feed = options.epochs, workers, feed

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Replace the table if it is due and another epoch follows."""
        if epoch + 1 < self._epochs:
            super().on_epoch_end(epoch, logs)

    def embed(self, rows: np.ndarray) -> np.ndarray:
        """Embed training images, or read their cached features."""
        self.model.average_statistics()
        return self._feed.embeddings_of(rows, "nearest classes")

    def share(self, array: np.ndarray) -> np.ndarray:
        """Return the first worker's array."""
        return self._workers.from_first(array)
