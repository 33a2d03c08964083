"""Many who search at once, and one who changes what is searched while nobody does."""

import contextlib
import threading
from collections.abc import Callable, Iterator


class Turns:
    """A lock for many readers or one that changes.

    Who wants to change goes before readers that come later, and those whom a change has kept
    waiting go before the next one: neither can keep the other out. A thread must not take a turn
    within its own.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._reading = 0
        self._changes_waiting = 0
        self._readers_waiting = 0
        # Readers whom the last change has kept waiting and who have not begun yet.
        self._first = 0

    @contextlib.contextmanager
    def together(self, behind: Callable[[], bool], catch_up: Callable[[], None]) -> Iterator[None]:
        """Read beside other readers.

        Args:
            behind: whether `catch_up` must be called before anybody reads.
            catch_up: called while nobody reads.
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
    def alone(self) -> Iterator[None]:
        """Change what is read, while nobody reads."""
        with self._condition:
            self._changes_waiting += 1
            try:
                while self._reading or (self._first and self._readers_waiting):
                    self._condition.wait()
            except BaseException:  # readers wait for a change that does not come
                self._condition.notify_all()
                raise
            finally:
                self._changes_waiting -= 1
            try:
                yield
            finally:
                self._first = self._readers_waiting
                self._condition.notify_all()
