"""Needs Keras. Training batches as a `keras.utils.PyDataset`, on any backend."""

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from pipelines.random_access import BatchSource
from pipelines.samplers import Sampler
from pipelines.table import ImageTable


class BalancedDataset(keras.utils.PyDataset):
    """A Keras dataset of augmented batches, without TensorFlow.

    Item i is the batch of step `start_step + i`. It has the same rows and labels as a batch of
    `training_batches` for the same seeds and step. The dataset has no end, so `fit` needs
    `steps_per_epoch`. The next epoch continues with the next step, and Keras shuffles nothing.

    Examples:
        >>> labels = np.arange(12) // 3
        >>> table = pipelines.ImageTable.from_arrays(np.zeros([12, 4], "float32"), labels)
        >>> sampler = pipelines.BalancedSampler(labels, classes_per_batch=2, images_per_class=2)
        >>> BalancedDataset(table, sampler)[0][1]
        array([1, 1, 0, 0])

    Args:
        table: `ImageTable`.
        sampler: `BalancedSampler`, or another function from a step to int64 rows `[batch_size]`
            with an attribute `batch_size`.
        transform: `TrainTransform`, which then uses Pillow (extra `images`). Or a function (source,
            seed) -> array, with a source as in `TrainTransform.with_pillow` and a seed uint64
            `[2]`. None: the rows of the table's `arrays`, unchanged.
        seed: Seed of the augmentation, an integer of 0 or more.
        start_step: Step of the first batch. A resumed training sets the number of finished steps.
        workers: Number of threads that decode the images of a batch.

    Raises:
        ValueError, TypeError: As for `training_batches`.
    """

    def __init__(
        self,
        table: ImageTable,
        sampler: Sampler,
        transform: Callable[..., Any] | None = None,
        seed: int = 0,
        start_step: int = 0,
        workers: int = 1,
    ) -> None:
        # Not the workers of Keras, which restart at item 0 in each epoch of an infinite dataset.
        super().__init__()
        # The sampler shuffles already.
        message = "`shuffle=True` was passed.*infinite PyDataset"
        warnings.filterwarnings("ignore", message=message)
        self._batches = BatchSource(table, sampler, transform, seed, start_step, workers=workers)

    @property
    def num_batches(self) -> None:
        """None: the dataset has no end.

        Keras shuffles the items of a finite dataset. It also reports the end of an epoch that it
        has not trained, so a finite dataset could not continue with the next step.
        """
        return None

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (images `[b, ...]`, labels int64 `[b]`) of step `start_step + index`."""
        return self._batches[index]
