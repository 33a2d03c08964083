"""Batches of classes that look alike, by a table of the nearest classes of each class."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from keras_dml._common.checks import argument_error, check_number, check_whole
from keras_dml._common.errors import ArgumentError
from pipelines.checks import (
    MOST_IMAGES,
    as_integers,
    as_labels,
    checked_seed,
    checked_step,
)
from pipelines.even_draws import choose
from pipelines.permutation import derive_keys, permuted, seed_key
from pipelines.step_tables import StepTables

# Streams of random numbers: the leaders, the classes of a batch, and then the images of class k.
_LEADERS, _HARD, _OTHERS, _IMAGES = range(4)


class HardClassSampler:
    """A class-balanced sampler whose batches contain classes that look alike.

    Among many classes, a batch of random classes rarely contains two that look alike, so most of
    its negatives teach nothing. A batch of P classes has

    - one leader, the next class of the epoch's permutation
    - `round(hardness · (P − 1))` classes, drawn among the k nearest classes of the leader
    - classes drawn at random among all others

    and no class twice. An epoch has one batch for each class, so every class leads once. Each class
    has m images, drawn at random: no image twice, unless the class has fewer than m images. The
    rows of a batch are ordered by class, with the leader first.

    `callbacks.RefreshHardClasses` computes the table of nearest classes and replaces it during the
    training. The sampler keeps every table with the first step that uses it, and chooses the table
    by the step. A batch is therefore a pure function of (seed, step, tables), in any order of
    calls. Store `state()` with the checkpoint of a training, and `restore` it before the training
    resumes.

    Examples:
        >>> labels = np.arange(12) // 3
        >>> neighbors = [[1], [0], [3], [2]]
        >>> sampler = HardClassSampler(labels, 2, 2, neighbors, hardness=1.0)
        >>> [sorted(set(labels[sampler(step)].tolist())) for step in range(4)]
        [[0, 1], [0, 1], [2, 3], [2, 3]]

    Args:
        labels: Class of each row, integers (or whole floats) or strings `[n]`.
        classes_per_batch: P.
        images_per_class: m.
        neighbors: Nearest classes of each class, integers `[classes, k]`: the numbers of the
            classes in sorted order, without the class itself, from
            `keras_dml.metrics.nearest_classes`. None: all classes of a batch but the leader are
            drawn at random until the first `refresh`.
        hardness: Fraction of the P − 1 classes next to the leader that are near the leader, from 0
            to 1.
        seed: Seed of the sequence of batches, an int64.

    Attributes:
        batch_size: P·m.
        num_rows: Number of labels.
        steps_per_epoch: Number of classes.
        classes: The classes in sorted order, `[classes]`.
        nearest_per_batch: `round(hardness · (P − 1))`, the smallest k.

    Raises:
        ValueError, TypeError: There are fewer than P classes, the labels are not a vector, the
            table has fewer columns than a batch has near classes, a row of it contains a class
            twice or its own class, or an argument is out of range.
    """

    def __init__(
        self,
        labels: ArrayLike,
        classes_per_batch: int,
        images_per_class: int,
        neighbors: ArrayLike | None = None,
        hardness: float = 0.5,
        seed: int = 0,
    ) -> None:
        self._classes_per_batch = check_whole("classes_per_batch", classes_per_batch, least=1)
        self._images_per_class = check_whole(
            "images_per_class", images_per_class, least=1, most=MOST_IMAGES
        )
        hardness = check_number("hardness", hardness, least=0, most=1)
        given = as_labels("labels", labels)
        if given.ndim != 1 or not len(given):
            raise argument_error("labels", "a vector with at least one label", given)
        self.classes, numbers, self._sizes = np.unique(
            given, return_inverse=True, return_counts=True
        )
        self._rows = np.argsort(numbers, kind="stable")
        self._starts = np.cumsum(self._sizes) - self._sizes
        if len(self.classes) < self._classes_per_batch:
            wanted = f"at most the number of classes, {len(self.classes)}"
            raise argument_error("classes_per_batch", wanted, classes_per_batch)
        self.batch_size = self._classes_per_batch * self._images_per_class
        self.num_rows = len(given)
        self.steps_per_epoch = len(self.classes)
        self.nearest_per_batch = round(hardness * (self._classes_per_batch - 1))
        key = seed_key(checked_seed(seed))
        self._keys = derive_keys(key, np.arange(_IMAGES + len(self.classes)))
        self._tables = StepTables()
        if neighbors is not None:
            self.refresh(neighbors, first_step=0)

    def __call__(self, step: int) -> np.ndarray:
        """Return the row numbers of batch `step` (from 0), int64 `[batch_size]`."""
        step = checked_step(step, self.batch_size)
        classes = self._classes_of(step)
        keys = derive_keys(self._keys[_IMAGES + classes], np.array([step]))
        images = choose(keys, self._sizes[classes], self._images_per_class, np.zeros_like(classes))
        return self._rows[self._starts[classes][:, None] + images].ravel()

    def _classes_of(self, step: int) -> np.ndarray:
        """Return the numbers of the classes of a batch, the leader first."""
        count, table = len(self.classes), self._tables.at(step)
        epoch, position = divmod(step, count)
        leader = _drawn(self._keys[_LEADERS], epoch, count, np.array([position]))
        near = leader[:0]
        if table is not None:
            candidates = table[1][leader[0]]
            places = np.arange(self.nearest_per_batch)
            near = candidates[_drawn(self._keys[_HARD], step, len(candidates), places)]
        taken = np.concatenate([leader, near])
        places = np.arange(self._classes_per_batch - len(taken))
        others = _drawn(self._keys[_OTHERS], step, count - len(taken), places)
        for number in np.sort(taken):  # number i of the classes that are not taken
            others += others >= number
        return np.concatenate([taken, others])

    def refresh(self, neighbors: ArrayLike, first_step: int) -> None:
        """Use a new table from a step on. Earlier steps keep their tables.

        Args:
            neighbors: As in the constructor, with the same k as the tables before.
            first_step: First step whose batch uses the table. Batches from this step on must not
                have been drawn for the training yet.

        Raises:
            ValueError, TypeError: The table is wrong, or another table begins at this step or
                later.
        """
        self._tables.add(self._checked_table(neighbors, self._tables.shape), first_step)

    def has_begun(self, first_step: int) -> bool:
        """Return whether the batch of a table's first step was drawn with this table."""
        return self._tables.has_begun(first_step)

    @property
    def num_neighbors(self) -> int | None:
        """k, the number of nearest classes in the tables, or None before the first table."""
        return None if self._tables.shape is None else self._tables.shape[1]

    def some_rows(self, images_per_class: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Return rows from which to compute the mean embeddings of the classes.

        Args:
            images_per_class: Most images of a class, evenly spaced among its rows. None: all.

        Returns:
            Row numbers in ascending order, and the number of the class of each, int64 `[rows]`.
        """
        most = self._sizes.max() if images_per_class is None else images_per_class
        kept = np.minimum(self._sizes, most)
        numbers = np.repeat(np.arange(len(kept)), kept)
        place = np.arange(len(numbers)) - np.repeat(np.cumsum(kept) - kept, kept)
        rows = self._rows[self._starts[numbers] + place * self._sizes[numbers] // kept[numbers]]
        order = np.argsort(rows)
        return rows[order], numbers[order]

    def state(self) -> dict[str, np.ndarray]:
        """Return all tables, for the checkpoint of a training.

        Returns:
            `neighbors` int32 `[tables, classes, k]`, and `first_steps` int64 `[tables]`.
        """
        neighbors, first_steps = self._tables.arrays(len(self.classes))
        return {"neighbors": neighbors, "first_steps": first_steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace all tables by those of `state()`.

        Raises:
            ValueError, TypeError: The tables are not for these classes, or are wrong.
        """
        tables = [self._checked_table(table) for table in state["neighbors"]]
        self._tables = StepTables.of_arrays(tables, state["first_steps"])

    def _checked_table(
        self, neighbors: ArrayLike, shape: tuple[int, ...] | None = None
    ) -> np.ndarray:
        count = len(self.classes)
        table = as_integers("neighbors", neighbors, count, None, bounds=(0, count - 1))
        if table.shape[1] < self.nearest_per_batch:
            wanted = f"at least {self.nearest_per_batch} nearest classes of each class"
            raise argument_error("neighbors", wanted, table.shape[1])
        if shape is not None and table.shape != shape:
            wanted = f"of shape {list(shape)}, like the tables before"
            raise argument_error("neighbors", wanted, list(table.shape))
        ordered = np.sort(table, axis=1)
        wrong = (table == np.arange(count)[:, None]).any(axis=1)
        wrong |= (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise ArgumentError(
                "neighbors must be different classes in each row, without the class of the row, "
                f"but got {table[row].tolist()} in row {row}."
            )
        return table.astype(np.int32)


def _drawn(key: np.ndarray, number: int, size: int, places: np.ndarray) -> np.ndarray:
    """Return items of permutation `number` of `range(size)`, int64 `[places]`."""
    if not len(places):
        return places
    keys = derive_keys(key[None], np.array([number]))
    return permuted(keys, np.array([size]), places[None, :])[0]
