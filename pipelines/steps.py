"""The rows and the random numbers of each training step, for every kind of batches."""

from collections.abc import Callable

import numpy as np

from keras_dml._common.checks import argument_error, check_whole
from keras_dml._common.errors import ArgumentError, as_array
from pipelines.checks import check_sampler
from pipelines.samplers import Sampler

# The sum of the first step and the number of steps must be an int64.
MOST_STEPS = 2**62
"""Largest number of steps, and of the first step."""


class Passes:
    """The passes over a dataset: each continues with the step after the last complete pass.

    `fit` begins a pass for each epoch, and one before the first epoch to build the model, from
    which it takes only one batch.

    Args:
        steps: Number of steps of a pass.
        batches_per_step: Number of batches that deliver a step.
    """

    def __init__(self, steps: int, batches_per_step: int = 1) -> None:
        self.steps = steps
        self._batches = steps * batches_per_step
        self._first, self._delivered = 0, 0

    def begin(self) -> int:
        """Begin a pass, and return the number of steps of all complete passes."""
        if self._delivered >= self._batches:
            self._first += self.steps
        self._delivered = 0
        return self._first

    def deliver(self) -> None:
        """Count a batch that the current pass has delivered."""
        self._delivered += 1


class Steps:
    """The steps of a training.

    Args:
        sampler: Function from a step to int64 rows `[batch_size]`, with an attribute `batch_size`.
        num_images: Number of rows that the sampler can choose from.
        seed: Seed of the random numbers, an integer of 0 or more.
        start_step: Number of the first step, or a function that returns it.
        num_steps: Number of steps, or None.

    Attributes:
        moves: Whether a function returns the first step.
        count: Number of steps, or None.
        batch_size: The sampler's batch size.

    Raises:
        ValueError, TypeError: An argument is out of range, or the sampler is wrong at the first
            step.
    """

    def __init__(
        self,
        sampler: Sampler,
        num_images: int,
        seed: int,
        start_step: int | Callable[[], int],
        num_steps: int | None,
    ) -> None:
        self._sampler, self._num_images = sampler, num_images
        self._seed = check_whole("seed", seed, least=0)
        self._start, self.moves = start_step, callable(start_step)
        if self.moves and num_steps is None:
            raise argument_error("num_steps", "set if start_step is a function", None)
        self.count = num_steps
        if num_steps is not None:
            self.count = check_whole("num_steps", num_steps, least=0, most=MOST_STEPS)
        self.batch_size = check_sampler(sampler)
        start = self.start
        if num_steps != 0:
            self.draw(start, 1)  # raises an error before the training starts

    @property
    def start(self) -> int:
        """Number of the first step, at the moment."""
        start = self._start() if callable(self._start) else self._start
        return check_whole("start_step", start, least=0, most=MOST_STEPS)

    def draw(self, step: int, numbers_per_row: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of a step, and random numbers for them.

        Returns:
            int64 `[rows]`, and uint64 `[rows, numbers_per_row]`.

        Raises:
            ValueError: The sampler returns a wrong number of rows, or rows out of range.
        """
        rows = as_array("sampler", self._sampler(step))
        received = None
        if rows.shape != (self.batch_size,) or rows.dtype.kind not in "iu":
            received = f"an array of shape {rows.shape} and dtype {rows.dtype}"
        elif (wrong := (rows < 0) | (rows >= self._num_images)).any():
            received = f"row {rows[wrong][0]}"
        if received is not None:
            raise ArgumentError(
                f"sampler must return row numbers of shape [{self.batch_size}], its batch_size, "
                f"from 0 to {self._num_images - 1}, but got {received} at step {step}."
            )
        sequence = np.random.SeedSequence((self._seed, step))
        numbers = sequence.generate_state(self.batch_size * numbers_per_row, np.uint64)
        return rows, numbers.reshape(self.batch_size, numbers_per_row)
