"""Needs Keras. Training batches as a `keras.utils.PyDataset`, on any backend."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_dml._backend.private import DataAdapter, InOrder
from keras_dml._common.checks import check_whole
from pipelines.hard_candidates import HardCandidateSampler
from pipelines.random_access import BatchSource
from pipelines.samplers import Sampler
from pipelines.steps import MOST_STEPS, Passes
from pipelines.table import ImageTable


class _StepDataset(keras.utils.PyDataset, DataAdapter):
    """A Keras dataset of the batches of a sequence, in the order of their steps.

    Args:
        batches: Sequence of batches (inputs, labels).
        sampler: Sampler, whose `steps_per_epoch` is the default.
        steps_per_epoch: As in `BalancedDataset`.
    """

    def __init__(self, batches: Any, sampler: Sampler, steps_per_epoch: int | None) -> None:
        # Not the workers of Keras, which would count the batches of two passes in one.
        super().__init__()
        self._batches = batches
        if steps_per_epoch is None:
            steps_per_epoch = getattr(sampler, "steps_per_epoch", None)
        self._passes: Passes | None = None
        if steps_per_epoch is not None:
            self._passes = Passes(
                check_whole("steps_per_epoch", steps_per_epoch, least=1, most=MOST_STEPS)
            )

    @property
    def num_batches(self) -> int | None:
        """Number of batches of an epoch, or None if the dataset has no end."""
        return None if self._passes is None else self._passes.steps

    def __getitem__(self, index: int) -> Any:
        """Return the batch (inputs, labels) of step `start_step + index`."""
        return self._batches[index]

    # The rest is the interface between a dataset and `fit`.
    batch_size = has_partial_batch = partial_batch_size = None

    def get_numpy_iterator(self) -> Iterator[Any]:
        """Return the batches of the next epoch as NumPy arrays."""
        return InOrder(self, self._pass).get_numpy_iterator()

    def get_jax_iterator(self) -> Iterator[Any]:
        """Return the batches of the next epoch for JAX."""
        return InOrder(self, self._pass).get_jax_iterator()

    def get_torch_dataloader(self) -> Any:
        """Return the batches of the next epoch as a `DataLoader`."""
        return InOrder(self, self._pass).get_torch_dataloader()

    def get_tf_dataset(self) -> Any:
        """Return a tf.data.Dataset, of which each iteration has the batches of the next epoch."""
        if self._passes is None:
            return InOrder(self, self._pass).get_tf_dataset()
        from pipelines.python_calls import delivered

        # Batches that wait in the buffers of an abandoned iteration do not count.
        uncounted = InOrder(self, lambda: self._pass(count=False)).get_tf_dataset()
        return delivered(uncounted, self._passes.deliver)

    def _pass(self, count: bool = True) -> Iterator[Any]:
        """Yield the batches of the next epoch, or all without `num_batches`."""
        if self._passes is None:
            yield from map(self.__getitem__, itertools.count())
            return
        first = self._passes.begin()
        for index in range(first, first + self._passes.steps):
            batch = self[index]
            if count:
                self._passes.deliver()
            yield batch


class BalancedDataset(_StepDataset):
    """A Keras dataset of augmented batches, without TensorFlow.

    Item i is the batch of step `start_step + i`. It has the same rows and labels as a batch of
    `training_batches` for the same seeds and step. An epoch of `fit` has `steps_per_epoch` batches
    in the order of their steps, and the next epoch continues with the next step. Keras shuffles
    nothing, and its `class_weight` has no effect.

    Examples:
        >>> labels = np.arange(12) // 3
        >>> table = pipelines.ImageTable.from_arrays(np.zeros([12, 4], "float32"), labels)
        >>> sampler = pipelines.BalancedSampler(labels, classes_per_batch=2, images_per_class=2)
        >>> dataset = BalancedDataset(table, sampler)
        >>> dataset.num_batches, dataset[0][1]
        (3, array([1, 1, 0, 0]))

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
        steps_per_epoch: Number of batches of an epoch. None: the sampler's `steps_per_epoch`. The
            dataset of a sampler without this attribute has no end, so `fit` needs its argument
            `steps_per_epoch`. Larger values of that argument end with this number. With 1, `fit` of
            a model that is not built yet can skip the first batch, from which Keras builds it.

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
        steps_per_epoch: int | None = None,
    ) -> None:
        source = BatchSource(table, sampler, transform, seed, start_step, workers=workers)
        super().__init__(source, sampler, steps_per_epoch)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (images `[b, ...]`, labels int64 `[b]`) of step `start_step + index`."""
        return super().__getitem__(index)


class PairDataset(_StepDataset):
    """A Keras dataset of batches for `models.DualEncoder`: queries and their candidates.

    Item i is the batch `((queries, candidates), (query labels, candidate labels))` of step
    `start_step + i`, with a third part for the stored candidates of a sampler with `frozen=True`.
    Epochs are as in `BalancedDataset`.

    Examples:
        >>> photos = pipelines.ImageTable.from_arrays(np.eye(6, dtype="float32"), list("aabbcc"))
        >>> catalog = pipelines.ImageTable.from_arrays(np.ones([3, 6], "float32"), list("abc"))
        >>> sampler = pipelines.RandomSampler(6, batch_size=2)
        >>> others = pipelines.HardCandidateSampler(sampler, photos.labels, catalog.labels, 1)
        >>> (queries, candidates), labels = PairDataset(photos, catalog, sampler, others)[0]
        >>> queries.shape, candidates.shape, labels[0].shape, labels[1].shape
        ((2, 6), (4, 6), (2,), (4,))

    Args:
        queries: `ImageTable` of the queries.
        candidates: `ImageTable` of the candidates.
        sampler: Sampler of the queries.
        candidate_sampler: Sampler of the candidates of the same steps, such as
            `HardCandidateSampler` or `CatalogSampler`.
        query_transform, candidate_transform: Transforms, as in `BalancedDataset`.
        seed, start_step, workers, steps_per_epoch: As in `BalancedDataset`.

    Raises:
        ValueError, TypeError: As for `training_batches`.
    """

    def __init__(
        self,
        queries: ImageTable,
        candidates: ImageTable,
        sampler: Sampler,
        candidate_sampler: Sampler,
        query_transform: Callable[..., Any] | None = None,
        candidate_transform: Callable[..., Any] | None = None,
        seed: int = 0,
        start_step: int = 0,
        workers: int = 1,
        steps_per_epoch: int | None = None,
    ) -> None:
        # Another seed, so that a query and its candidate are not cropped alike.
        sides = (
            BatchSource(queries, sampler, query_transform, seed, start_step, workers=workers),
            BatchSource(
                candidates,
                candidate_sampler,
                candidate_transform,
                seed + 1,
                start_step,
                workers=workers,
            ),
        )
        super().__init__(_Pairs(sides, candidate_sampler, start_step), sampler, steps_per_epoch)


class _Pairs:
    """A sequence of the batches of two sides.

    Args:
        sides: Batches of the queries and of the candidates.
        sampler: Sampler of the candidates, perhaps with stored ones.
        start_step: Step of the first batch.
    """

    def __init__(self, sides: Sequence[BatchSource], sampler: Sampler, start_step: int) -> None:
        self._sides, self._start_step = sides, start_step
        self._stored: Callable[[int], Any] | None = None
        if isinstance(sampler, HardCandidateSampler) and sampler.frozen:
            self._stored = sampler.stored

    def __getitem__(self, index: int) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
        parts = [side[index] for side in self._sides]
        if self._stored is not None:
            parts.append(self._stored(self._start_step + index))
        inputs, labels = zip(*parts)
        return inputs, labels
