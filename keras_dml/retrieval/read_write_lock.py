"""A readers-writer lock for an index."""

import contextlib
import threading
from collections.abc import Callable, Iterator


class ReadWriteLock:
    """A lock for many readers or one writer.

    A waiting writer goes before readers that arrive later, and readers that waited for a writer go
    before the next writer. Neither side can starve the other. The lock is not reentrant.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._reading = 0
        self._changes_waiting = 0
        self._readers_waiting = 0
        # Readers that waited for the last writer and have not started yet.
        self._first = 0

    @contextlib.contextmanager
    def reading(self, behind: Callable[[], bool], catch_up: Callable[[], None]) -> Iterator[None]:
        """Read, in parallel with other readers.

        Args:
            behind: Function that returns whether `catch_up` must run before reading.
            catch_up: Function to call while no thread reads.
        """
        with self._condition:
            self._readers_waiting += 1
            try:
                while (self._changes_waiting and not self._first) or (self._reading and behind()):
                    self._condition.wait()
                self._first = max(0, self._first - 1)
            finally:
                self._readers_waiting -= 1
            if behind():
                try:
                    catch_up()
                finally:
                    self._condition.notify_all()
            self._reading += 1
        try:
            yield
        finally:
            with self._condition:
                self._reading -= 1
                if not self._reading:
                    self._condition.notify_all()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Write while no thread reads."""
        with self._condition:
            self._changes_waiting += 1
            try:
                while self._reading or (self._first and self._readers_waiting):
                    self._condition.wait()
            except BaseException:  # wake readers that wait for this writer
                self._condition.notify_all()
                raise
            finally:
                self._changes_waiting -= 1
            try:
                yield
            finally:
                self._first = self._readers_waiting
                self._condition.notify_all()
