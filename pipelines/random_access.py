"""Batches by step number, without TensorFlow: for Keras on any backend, Grain, and PyTorch.

Equal seeds and steps give the same rows, labels, and seeds of the augmentation as
`training_batches`.
"""

import concurrent.futures
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from keras_dml._common.checks import check_whole
from keras_dml._common.errors import ArgumentError
from pipelines.checks import check_callable
from pipelines.image_files import read_image
from pipelines.max_pixels import max_pixels_of
from pipelines.samplers import Sampler
from pipelines.steps import MOST_STEPS, Steps
from pipelines.table import ImageTable, check_table, plain_rows


class BatchSource:
    """A sequence of training batches: `batches[i]` is the batch of step `start_step + i`.

    `grain.MapDataset.source(batches)` and `torch.utils.data.DataLoader(batches, batch_size=None)`
    take it as a source (see `grain.IterDataset` and `DataLoader` for threads and processes). An
    item is a whole batch, so any number of workers keeps the batches and their order.

    Examples:
        >>> table = pipelines.ImageTable.from_arrays(np.eye(6, dtype="float32"), list("aabbcc"))
        >>> batches = BatchSource(table, pipelines.BalancedSampler(table.labels, 2, 2), num_steps=9)
        >>> len(batches), batches[8][0].shape
        (9, (4, 6))

    Args:
        table: `ImageTable`.
        sampler: Function from a step to int64 rows `[batch_size]`, with an attribute `batch_size`.
        transform: `TrainTransform`, or a function (source, seed) -> array, with a source as in
            `TrainTransform.with_pillow` and a seed uint64 `[2]`. None: the rows of the table's
            `arrays`, unchanged.
        seed: Seed of the augmentation, an integer of 0 or more.
        start_step: Step of the first batch.
        num_steps: Number of batches. None: practically infinite.
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
        num_steps: int | None = None,
        workers: int = 1,
    ) -> None:
        check_table("table", table)
        self._rows = plain_rows(table) if transform is None else None
        if transform is not None:
            check_callable("transform", transform)
        self._table = table
        self._max_pixels = max_pixels_of(transform)
        self._transform = getattr(transform, "with_pillow", transform)
        self._workers = check_whole("workers", workers, least=1)
        self._steps = Steps(sampler, len(table), seed, start_step, num_steps)

    def __len__(self) -> int:
        return MOST_STEPS if self._steps.count is None else self._steps.count

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (images `[b, ...]`, labels int64 `[b]`) of step `start_step + index`.

        Raises:
            IndexError: `index` is out of range.
            ValueError: An image cannot be read. The message names its file or its row.
        """
        if not 0 <= index < len(self):
            raise IndexError(index)
        rows, seeds = self._steps.draw(self._steps.start + int(index), 2)
        if self._rows is not None:
            return np.asarray(self._rows[rows]), self._table.labels[rows]
        with concurrent.futures.ThreadPoolExecutor(self._workers) as pool:
            images = list(pool.map(self._load, rows, seeds))
        return np.stack(images), self._table.labels[rows]

    def _load(self, row: int, seed: np.ndarray) -> np.ndarray:
        table = self._table
        name = f"image {row}" if table.paths is None else str(table.paths[row])
        try:
            if table.paths is not None:
                image = read_image(name, self._max_pixels)
            else:
                images = table.arrays if table.encoded is None else table.encoded
                image = cast(np.ndarray, images)[row]
            source = image if table.boxes is None else (image, table.boxes[row])
            return np.asarray(cast(Callable, self._transform)(source, seed))
        except (ArgumentError, OSError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ArgumentError(f"table must contain readable images. {name}: {reason}") from error
