"""A folder that one process at a time writes into."""

import contextlib
import fcntl
import pathlib
from collections.abc import Iterator
from typing import TextIO

from experiments.options.errors import UsageError

_LOCK = ".lock"


def hold(folder: pathlib.Path, argument: str) -> TextIO:
    """The folder's lock, until it is closed or the process ends, however it does.

    The file stays: to delete it would take the lock from under a process that waits for it.

    Args:
        folder: which exists.
        argument: what it was given as, for the message.

    Raises:
        UsageError: another process holds it.
    """
    lock = open(folder / _LOCK, "w")  # noqa: SIM115 held by whoever called
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise UsageError(
            f"{argument} {str(folder)!r} is in use by another running process"
        ) from error
    return lock


@contextlib.contextmanager
def held(folder: pathlib.Path, argument: str) -> Iterator[None]:
    """`hold` within a with statement."""
    with hold(folder, argument):
        yield
