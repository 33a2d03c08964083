"""Samplers: pure functions from a batch number to the rows of the batch.

A sampler is a small object. `sampler(step)` returns the same rows in any order of calls,
so a resumed run, a second worker, and a debugger see the same batch.
"""

import warnings
from collections.abc import Callable
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike

from keras_dml._common.checks import argument_error, check_whole
from pipelines.checks import (
    MOST_IMAGES,
    MOST_SLOTS,
    as_integers,
    as_labels,
    checked_seed,
    checked_step,
)
from pipelines.even_draws import choose, draws_complement, occurrences
from pipelines.hard_classes import HardClassSampler
from pipelines.permutation import derive_keys, permuted, seed_key
from pipelines.table import number_classes


class Sampler(Protocol):
    """A pure function from a step to the rows of its batch, int64 `[batch_size]`."""

    @property
    def batch_size(self) -> int:
        """Number of rows in each batch."""

    def __call__(self, step: int) -> np.ndarray:
        """Return the row numbers of a batch."""


class RandomSampler:
    """A sampler that draws each image at most once per epoch, in a new random order each epoch.

    The last partial batch is dropped. The images that it leaves out differ between epochs.

    Examples:
        >>> sampler = RandomSampler(10, batch_size=4, seed=0)
        >>> sampler(0), sampler.steps_per_epoch
        (array([0, 7, 8, 2]), 2)

    Args:
        num_images: Number of rows to choose from.
        batch_size: Rows in a batch, at most `num_images`.
        seed: Seed of the sequence of batches, an int64.

    Attributes:
        batch_size: Rows in a batch.
        steps_per_epoch: `num_images // batch_size`.

    Raises:
        ValueError, TypeError: An argument is out of range or not an integer.
    """

    def __init__(self, num_images: int, batch_size: int, seed: int = 0) -> None:
        self.batch_size = check_whole("batch_size", batch_size, least=1)
        self._num_images = check_whole("num_images", num_images, most=MOST_SLOTS)
        if self._num_images < self.batch_size:
            wanted = f"at most the number of images, {num_images}"
            raise argument_error("batch_size", wanted, batch_size)
        self.steps_per_epoch = self._num_images // self.batch_size
        self._key = seed_key(checked_seed(seed))

    def __call__(self, step: int) -> np.ndarray:
        """Return the row numbers of batch `step` (from 0), int64 `[batch_size]`."""
        epoch, batch = divmod(checked_step(step, self.batch_size), self.steps_per_epoch)
        positions = batch * self.batch_size + np.arange(self.batch_size)
        sizes = np.array([self._num_images])
        return permuted(derive_keys(self._key, np.array([epoch])), sizes, positions[None, :])[0]


class BalancedSampler:
    """A class-balanced sampler: P classes in each batch, m images of each class.

    At any time, all classes have appeared equally often, and so have all images of a class (counts
    differ by at most 1). A class appears at most once in a batch. An image appears at most once in
    a batch, unless its class has fewer than m images. Then each of its images appears `m // size`
    or `m // size + 1` times. The rows of a batch are ordered by class: rows `m*i .. m*i+m-1` have
    the same class.

    Examples:
        >>> labels = np.arange(12) // 3
        >>> sampler = BalancedSampler(labels, classes_per_batch=2, images_per_class=2)
        >>> sampler(0)
        array([3, 5, 0, 1])

    Args:
        labels: Class of each row, integers (or whole floats) or strings `[n]`.
        classes_per_batch: P.
        images_per_class: m. The value 1 warns, because a loss over pairs then has no positives.
        seed: Seed of the sequence of batches, an int64.

    Attributes:
        batch_size: P·m.
        steps_per_epoch: `n // batch_size`, but at least 1.

    Raises:
        ValueError, TypeError: There are fewer than P classes, the labels are not a vector, or an
            argument is out of range.
    """

    _needs_positives: ClassVar[bool] = True

    def __init__(
        self, labels: ArrayLike, classes_per_batch: int, images_per_class: int, seed: int = 0
    ) -> None:
        self._classes_per_batch = check_whole("classes_per_batch", classes_per_batch, least=1)
        self._images_per_class = check_whole(
            "images_per_class", images_per_class, least=1, most=MOST_IMAGES
        )
        labels = as_labels("labels", labels)
        if labels.dtype.kind == "U" and labels.ndim == 1 and len(labels):
            labels, _ = number_classes(labels)
        labels = as_integers("labels", labels, None)
        self._rows = np.argsort(labels, kind="stable")
        _, self._starts, self._sizes = np.unique(
            labels[self._rows], return_index=True, return_counts=True
        )
        if len(self._sizes) < self._classes_per_batch:
            wanted = f"at most the number of classes, {len(self._sizes)}"
            raise argument_error("classes_per_batch", wanted, classes_per_batch)
        self.batch_size = self._classes_per_batch * self._images_per_class
        self.steps_per_epoch = max(1, len(labels) // self.batch_size)
        # Stream 0 orders the classes. Stream k+1 orders the images of class k.
        self._keys = derive_keys(seed_key(checked_seed(seed)), np.arange(len(self._sizes) + 1))
        if self._images_per_class == 1 and self._needs_positives:
            warnings.warn(
                "images_per_class=1 gives batches without two images of a class. A loss over pairs "
                "learns nothing from them. Losses over proxies and classifiers do.",
                stacklevel=2,
            )

    def __call__(self, step: int) -> np.ndarray:
        """Return the row numbers of batch `step` (from 0), int64 `[batch_size]`."""
        step = checked_step(step, self.batch_size)
        classes, visits = self._classes_and_visits(step)
        images = choose(
            self._keys[classes + 1], self._sizes[classes], self._images_per_class, visits
        )
        return self._rows[self._starts[classes][:, None] + images].ravel()

    def _classes_and_visits(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the classes of a batch, and how many earlier batches contain each class."""
        key, wanted, count = self._keys[:1], self._classes_per_batch, len(self._sizes)
        classes = choose(key, np.array([count]), wanted, np.array([step]))[0]
        left_out = count - wanted
        if left_out == 0 or not draws_complement(count, wanted):
            # Classes are in the order of their slots. Each class has one of every `count` slots.
            return classes, (step * wanted + np.arange(wanted)) // count
        return classes, step - occurrences(key, count, left_out, step, classes)


class QuietBalancedSampler(BalancedSampler):
    """A `BalancedSampler` that does not warn, for batches whose rows need no positives."""

    _needs_positives = False

    def rows_and_visits(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of a batch, and how often each of them was drawn before.

        Slots of the batch count, too: the second slot of a row has one visit more than the first.

        Returns:
            int64 `[batch_size]` each.
        """
        each = self._images_per_class
        classes, numbers = self._classes_and_visits(step)
        sizes, visits = self._sizes[classes], []
        chosen = choose(self._keys[classes + 1], sizes, each, numbers)
        for row in range(len(classes)):
            key, size, number = self._keys[classes[row] + 1 :][:1], int(sizes[row]), numbers[row]
            # A draw has each item `times` times, and `rest` of them once more.
            times, rest = divmod(each, size)
            if not times and not draws_complement(size, rest):
                visits.append((number * rest + np.arange(rest)) // size)
                continue
            items, left_out = chosen[row], size - rest
            if rest == 0:
                more = np.zeros(each, np.int64)
            elif draws_complement(size, rest):
                more = number - occurrences(key, size, left_out, number, items)
            else:
                more = occurrences(key, size, rest, number, items)
            visits.append(number * times + more + np.arange(each) // size)
        rows = self._rows[self._starts[classes][:, None] + chosen]
        return rows.ravel(), np.concatenate(visits)


def random_batches(labels: ArrayLike, batch_size: int, seed: int = 0) -> RandomSampler:
    """Sample each image once per epoch."""
    return RandomSampler(len(np.asarray(labels)), batch_size, seed)


def balanced_batches(
    labels: ArrayLike, batch_size: int, images_per_class: int = 4, seed: int = 0
) -> BalancedSampler:
    """Sample several images of each of `batch_size / images_per_class` classes.

    Args:
        labels: Class ids of the rows.
        batch_size: Rows in a batch.
        images_per_class: Images of each class in a batch.
        seed: Seed of the sequence of batches.

    Raises:
        ValueError: `batch_size` is not a multiple of `images_per_class`, or there are too few
            classes.
    """
    classes = _classes_per_batch(labels, batch_size, images_per_class)
    # The command checks whether its loss needs positives.
    return QuietBalancedSampler(labels, classes, images_per_class, seed)


def hard_class_batches(
    labels: ArrayLike,
    batch_size: int,
    images_per_class: int = 4,
    hardness: float = 0.5,
    seed: int = 0,
) -> HardClassSampler:
    """Sample several images of each of `batch_size / images_per_class` classes that look alike.

    An epoch has one batch for each class.

    Args:
        labels: Class ids of the rows.
        batch_size: Rows in a batch.
        images_per_class: Images of each class in a batch.
        hardness: Fraction of the classes of a batch that are drawn among the nearest classes of
            its first class. The others are random.
        seed: Seed of the sequence of batches.

    Raises:
        ValueError: As in `balanced_batches`, or `hardness` is out of range.
    """
    classes = _classes_per_batch(labels, batch_size, images_per_class)
    return HardClassSampler(labels, classes, images_per_class, hardness=hardness, seed=seed)


def _classes_per_batch(labels: ArrayLike, batch_size: int, images_per_class: int) -> int:
    """Return how many classes a batch has, or raise `ValueError`."""
    images_per_class = check_whole("images_per_class", images_per_class, least=1)
    if batch_size % images_per_class:
        raise argument_error(
            "batch_size", f"a multiple of images_per_class={images_per_class}", batch_size
        )
    classes, there = batch_size // images_per_class, len(np.unique(np.asarray(labels)))
    if classes > there:
        wanted = f"at most {there * images_per_class}, {images_per_class} images of {there} classes"
        advice = "Lower batch_size, or raise images_per_class or train_classes."
        raise argument_error("batch_size", wanted, batch_size, advice=advice)
    return classes


SAMPLERS: dict[str, Callable[..., RandomSampler | BalancedSampler | HardClassSampler]] = {
    "random": random_batches,
    "balanced": balanced_batches,
    "hard_classes": hard_class_batches,
}
"""Functions from (labels, batch_size, seed, further arguments) to samplers, by name.

A command line sets the further arguments by flags of their names.
"""
