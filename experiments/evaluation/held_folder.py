"""Locks on files and folders, so that one process at a time writes into them."""

import contextlib
import errno
import fcntl
import os
import pathlib
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Iterator
from typing import TextIO

from experiments.options.errors import UsageError

_LOCK = ".lock"


def try_lock(path: pathlib.Path) -> TextIO | None:
    """Lock a file until it is closed or the process ends.

    The file is not deleted, because another process may wait for its lock.

    Returns:
        The open file; None if another process has the lock.

    Raises:
        OSError: The path is not a regular file, such as another user's link or pipe, or its file
            system has no locks.
    """
    lock = open(path, "w", opener=_opened_untouched)  # noqa: SIM115, the caller closes it
    try:
        if not stat.S_ISREG(os.fstat(lock.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    except OSError:
        lock.close()
        raise
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    except OSError as error:
        lock.close()
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    return lock


def _opened_untouched(path: str, flags: int) -> int:
    """Open a file without truncating it, following a link, or waiting for a pipe."""
    return os.open(path, flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


@contextlib.contextmanager
def waiting_for(path: pathlib.Path) -> Iterator[None]:
    """Wait for the lock of a file, and hold it within a with statement."""
    while (lock := try_lock(path)) is None:
        time.sleep(0.1)
    with lock:
        yield


def _in_use(what: str) -> UsageError:
    return UsageError(f"{what} is in use by another running process.")


@contextlib.contextmanager
def held(folder: pathlib.Path, argument: str) -> Iterator[None]:
    """Hold the lock of an existing folder within a with statement.

    Args:
        folder: The folder.
        argument: Name of its argument, for the message.

    Raises:
        UsageError: Another process has the lock.
    """
    lock = try_lock(folder / _LOCK)
    if lock is None:
        raise _in_use(f"{argument} {str(folder)!r}")
    with lock:
        yield


@contextlib.contextmanager
def opened(output_dir: pathlib.Path) -> Iterator[None]:
    """Create the folder of a command's results, and hold its lock, as `held`."""
    output_dir.mkdir(parents=True, exist_ok=True)
    with held(output_dir, "output_dir"):
        yield


@contextlib.contextmanager
def held_beside(folder: pathlib.Path, argument: str, shown: str = "") -> Iterator[None]:
    """Lock a folder that is replaced as a whole, by a temporary file next to it.

    Args:
        folder: The folder. It may be missing, but its parent exists.
        argument: As in `held`.
        shown: The name in the message. The default is the folder.
    """
    target = pathlib.Path(os.path.realpath(folder))
    path = target.with_name(f".{target.name}{_LOCK}")
    while True:
        lock = try_lock(path)
        if lock is None:
            raise _in_use(f"{argument} {shown or repr(str(folder))}")
        if _is_open(path, lock):
            break
        lock.close()  # another process has deleted the file since it was opened
    with lock:
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _is_open(path: pathlib.Path, file: TextIO) -> bool:
    """Return whether an open file is the file at a path."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    return False


class TemporaryFolder:
    """A temporary folder of this process, deleted when the process ends.

    A killed process leaves its folder, and the next one with the same prefix deletes it.

    Args:
        prefix: Start of the name.

    Attributes:
        path: The folder.
    """

    def __init__(self, prefix: str) -> None:
        delete_abandoned(prefix)
        made = pathlib.Path(tempfile.mkdtemp(prefix=f".{prefix}"))
        self._lock = try_lock(made / _LOCK)
        # Other processes look for this name, so the folder gets it after it is locked.
        self.path = made.with_name(made.name.removeprefix("."))
        os.rename(made, self.path)
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def delete_abandoned(prefix: str) -> None:
    """Delete each `TemporaryFolder` of a killed process."""
    for folder in pathlib.Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # deleted since it was listed
            status = folder.lstat()
            # Another user may have created anything there, such as links to this user's files.
            if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
                continue
            if (lock := try_lock(folder / _LOCK)) is not None:
                with lock:
                    shutil.rmtree(folder, ignore_errors=True)
