"""The nearest classes of a run with `--sampler=hard_classes`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.training.features import FeatureFeed, ImageFeed
from keras_dml.callbacks import RefreshHardClasses

if TYPE_CHECKING:
    from experiments.training.fit import Training
    from pipelines import HardClassSampler


class RefreshOfRun(RefreshHardClasses):
    """The callback that computes the nearest classes of a run, before its checkpoint is written.

    Every worker embeds its share of the images, and receives the first worker's table.

    Args:
        training: The training.
        feed: Computes the embeddings of the images.
        sampler: The sampler of the run.
    """

    def __init__(
        self, training: Training, feed: ImageFeed | FeatureFeed, sampler: HardClassSampler
    ) -> None:
        self._training, self._feed = training, feed
        options = training.run.options
        super().__init__(sampler, None, every=options.refresh_every, start_step=training.state.step)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Replace the table if it is due and another epoch follows."""
        if epoch + 1 < self._training.run.options.epochs:
            super().on_epoch_end(epoch, logs)

    def embed(self, rows: np.ndarray) -> np.ndarray:
        """Embed training images, or read their cached features."""
        self.model.average_statistics()
        return self._feed.embeddings_of(rows, "nearest classes")

    def share(self, table: np.ndarray) -> np.ndarray:
        """Return the first worker's table."""
        return self._training.workers.from_first(table)
