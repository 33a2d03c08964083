"""Tables that a training replaces, chosen by the step."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

import numpy as np

from keras_dml._common.checks import argument_error, check_whole
from pipelines.checks import MOST_SLOTS


class StepTables:
    """Tables with the first step that uses each of them.

    Every table is kept, so that a draw for any step is the same in any order of calls.
    """

    def __init__(self) -> None:
        # Replaced by a longer tuple, so that threads read a complete one.
        self._tables: tuple[tuple[int, np.ndarray], ...] = ()
        self._begun: set[int] = set()
        self.last_used = -1
        """First step of the latest table that `at` has returned, or -1."""

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of every table, or None before the first one."""
        return self._tables[0][1].shape if self._tables else None

    def at(self, step: int) -> tuple[int, np.ndarray] | None:
        """Return the first step and the table of a step, or None before the first table."""
        tables = self._tables
        place = bisect.bisect_right(tables, step, key=lambda table: table[0]) - 1
        if place < 0:
            return None
        if step == tables[place][0]:
            self._begun.add(step)
        self.last_used = max(self.last_used, tables[place][0])
        return tables[place]

    def has_begun(self, first_step: int) -> bool:
        """Return whether `at` has returned a table for its first step."""
        return first_step in self._begun

    def add(self, table: np.ndarray, first_step: int) -> None:
        """Use a table from a step on.

        Raises:
            ValueError: Another table begins at this step or later.
        """
        first_step = check_whole("first_step", first_step, least=0, most=MOST_SLOTS)
        if self._tables and first_step <= self._tables[-1][0]:
            wanted = f"above {self._tables[-1][0]}, the first step of the table before"
            advice = "Set start_step to the number of finished steps."
            raise argument_error("first_step", wanted, first_step, advice=advice)
        self._tables = (*self._tables, (first_step, table))

    def arrays(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the tables `[tables, rows, k]`, and their first steps int64 `[tables]`."""
        tables = [table for _, table in self._tables]
        stacked = np.stack(tables) if tables else np.zeros((0, rows, 0), np.int32)
        return stacked, np.array([first for first, _ in self._tables], np.int64)

    @classmethod
    def of_arrays(cls, tables: Iterable[np.ndarray], first_steps: Iterable[int]) -> StepTables:
        """Create the tables from `arrays`."""
        found = cls()
        for table, first_step in zip(tables, first_steps, strict=True):
            found.add(table, int(first_step))
        return found
