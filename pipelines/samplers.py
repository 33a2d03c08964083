"""Samplers: pure functions from a batch number to the rows of the batch.

A sampler is a small immutable object. `sampler(step)` returns the same rows in any order of calls,
so a resumed run, a second worker, and a debugger see the same batch.
"""

import warnings
from collections.abc import Callable
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike

from keras_dml._common.checks import argument_error, check_whole
from pipelines.checks import as_integers, as_labels
from pipelines.permutation import derive_keys, permuted, seed_key
from pipelines.table import number_classes

# Most images of a class in a batch: the longest axis of a tensor.
_MOST_IMAGES = 2**31 - 1
# Most images, and most slots of all batches up to a step, because positions are int64.
_MOST_SLOTS = 2**62


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
        self._num_images = check_whole("num_images", num_images, most=_MOST_SLOTS)
        if self._num_images < self.batch_size:
            wanted = f"at most the number of images, {num_images}"
            raise argument_error("batch_size", wanted, batch_size)
        self.steps_per_epoch = self._num_images // self.batch_size
        self._key = seed_key(checked_seed(seed))

    def __call__(self, step: int) -> np.ndarray:
        """Return the row numbers of batch `step` (from 0), int64 `[batch_size]`."""
        epoch, batch = divmod(_checked_step(step, self.batch_size), self.steps_per_epoch)
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
            "images_per_class", images_per_class, least=1, most=_MOST_IMAGES
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
        step = _checked_step(step, self.batch_size)
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
        if left_out == 0 or not _draws_complement(count, wanted):
            # Classes are in the order of their slots. Each class has one of every `count` slots.
            return classes, (step * wanted + np.arange(wanted)) // count
        return classes, step - _occurrences(key, count, left_out, step, classes)


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
            if not times and not _draws_complement(size, rest):
                visits.append((number * rest + np.arange(rest)) // size)
                continue
            items, left_out = chosen[row], size - rest
            if rest == 0:
                more = np.zeros(each, np.int64)
            elif _draws_complement(size, rest):
                more = number - _occurrences(key, size, left_out, number, items)
            else:
                more = _occurrences(key, size, rest, number, items)
            visits.append(number * times + more + np.arange(each) // size)
        rows = self._rows[self._starts[classes][:, None] + chosen]
        return rows.ravel(), np.concatenate(visits)


def _occurrences(
    key: np.ndarray, size: int, drawn: int, number: int, items: np.ndarray
) -> np.ndarray:
    """Return how many of the windows before window `number` contain each item, int64 `[items]`.

    An item is in each cycle of the walk once, so only windows of the last cycle need a look.
    """
    cycle = number * drawn // size
    draws = np.arange(cycle * size // drawn, number)
    if not len(draws):
        return np.full(len(items), cycle)
    walk = _window(
        np.repeat(key, len(draws)),
        np.full(len(draws), size),
        np.full(len(draws), drawn),
        draws,
    )
    slots = draws[:, None] * drawn + np.arange(drawn)
    return cycle + np.isin(items, walk[slots >= cycle * size])


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
    # The command checks whether its loss needs positives.
    return QuietBalancedSampler(labels, classes, images_per_class, seed)


SAMPLERS: dict[str, Callable[..., RandomSampler | BalancedSampler]] = {
    "random": random_batches,
    "balanced": balanced_batches,
}
"""Functions from (labels, batch_size, seed, further arguments) to samplers, by name.

A command line sets the further arguments by flags of their names.
"""


def checked_seed(seed: object) -> int:
    """Check that a seed is an int64. Larger seeds would repeat smaller ones."""
    return check_whole("seed", seed, least=-(2**63), most=2**63 - 1)


def _checked_step(step: object, batch_size: int) -> int:
    return check_whole("step", step, least=0, most=_MOST_SLOTS // batch_size)


def choose(keys: np.ndarray, sizes: np.ndarray, count: int, numbers: np.ndarray) -> np.ndarray:
    """Draw `count` items of `range(size)` as evenly as possible, one independent sequence per row.

    Over the draws 0, 1, 2, … of a row, all items appear equally often (±1). Each item appears at
    most `ceil(count / size)` times in one draw.

    Args:
        keys: uint64 `[rows]`.
        sizes: int64 `[rows]`.
        count: Items in a draw, one integer for all rows.
        numbers: int64 `[rows]`, the number of the draw.

    Returns:
        int64 `[rows, count]`.
    """
    rest = count % sizes
    complement = _draws_complement(sizes, rest)
    drawn = np.where(complement, sizes - rest, rest)
    items = _window(keys, sizes, drawn, numbers)
    chosen = np.empty((len(sizes), count), np.int64)
    for row, size in enumerate(sizes.tolist()):
        remaining = items[row, : drawn[row]]
        if complement[row]:
            remaining = np.setdiff1d(np.arange(size), remaining)
        # First, each item count // size times, then the remaining ones.
        chosen[row] = np.concatenate([np.tile(np.arange(size), count // size), remaining])
    return chosen


def _draws_complement(sizes: np.ndarray | int, wanted: np.ndarray | int) -> np.ndarray:
    """Return whether to draw the items to leave out. `_window` needs sizes ≥ 2·drawn - 1."""
    return np.asarray(sizes < 2 * wanted - 1)


def _window(
    keys: np.ndarray, sizes: np.ndarray, drawn: np.ndarray, numbers: np.ndarray
) -> np.ndarray:
    """Return window `number` of `drawn` items on a walk through permutations of `range(size)`.

    The walk of a row joins random permutations (its cycles), so all items appear equally often. If
    a window spans two cycles, the second cycle could repeat items of the first. To prevent this,
    the first `drawn` items of each cycle are sorted stably: items in the tail of the previous
    cycle, which is in the same window, come last. With `size ≥ 2·drawn - 1`, the tail is never in
    the sorted part, so only one previous cycle is needed.

    Args:
        keys: uint64 `[rows]`.
        sizes, drawn, numbers: int64 `[rows]`.

    Returns:
        int64 `[rows, max(1, largest drawn)]`. Only the first `drawn` items of a row are valid.
    """
    column = np.arange(max(1, drawn.max()))[None, :]
    drawn = np.maximum(drawn, 1)
    last_cycle = (numbers * drawn + drawn - 1) // sizes
    tail_length = (last_cycle * sizes % drawn)[:, None]
    cycles, positions = np.divmod((numbers * drawn)[:, None] + column, sizes[:, None])
    within = (sizes - 1)[:, None]
    wanted = np.concatenate([np.broadcast_to(column, positions.shape), positions], axis=1)
    head, here = np.split(
        permuted(derive_keys(keys, last_cycle), sizes, np.minimum(wanted, within)), 2, axis=1
    )
    tail_positions = np.minimum(within + 1 - tail_length + column, within)
    tail = permuted(derive_keys(keys, last_cycle - 1), sizes, tail_positions)
    in_tail = (head[:, :, None] == tail[:, None, :]) & (column < tail_length)[:, None, :]
    order = np.argsort(in_tail.any(axis=2) + 2 * (column >= drawn[:, None]), axis=1, kind="stable")
    head = np.take_along_axis(head, order, axis=1)
    from_head = np.take_along_axis(head, np.minimum(positions, column[0, -1]), axis=1)
    here = np.where(positions < drawn[:, None], from_head, here)
    # If a window spans two cycles, it starts with the tail.
    return np.where(cycles < last_cycle[:, None], tail, here)
