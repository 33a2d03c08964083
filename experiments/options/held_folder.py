"""Locks: one process at a time writes into a folder."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import pathlib
import stat
from collections.abc import Iterator, Sequence

import filelock

from experiments.options.errors import UsageError

_LOCK = ".lock"


def try_lock(path: pathlib.Path) -> contextlib.ExitStack | None:
    """Lock a file until the returned stack is closed or the process ends.

    The file stays, because other processes may wait for it.

    Returns:
        None if another process has the lock.

    Raises:
        UsageError: The path is not a regular file.
        OSError: Its file system has no locks.
    """
    _check_file(path)
    lock = filelock.FileLock(path, blocking=False, thread_local=False)
    try:
        lock.acquire()
    except filelock.Timeout:
        return None
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    stack = contextlib.ExitStack()
    stack.callback(lock.release)
    return stack


def waiting_for(path: pathlib.Path) -> contextlib.AbstractContextManager[object]:
    """Return a context that waits for a file's lock and keeps it.

    Raises:
        UsageError: The path is not a regular file.
    """
    _check_file(path)
    return filelock.FileLock(path)


@contextlib.contextmanager
def held(folder: pathlib.Path, argument: str) -> Iterator[None]:
    """Create a folder, and lock it within a with statement.

    Args:
        folder: The folder.
        argument: Name of the argument, for the message.

    Raises:
        UsageError: Another process has the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / _LOCK, f"{argument} {str(folder)!r}"):
        yield


@contextlib.contextmanager
def held_beside(folder: pathlib.Path, argument: str, shown: str = "") -> Iterator[None]:
    """Lock a folder with a file next to it within a with statement.

    Args:
        folder: A folder that the process replaces as a whole. Its parent must exist.
        argument: Name of the argument, for the message.
        shown: Name of the folder in the message. The default is its path.

    Raises:
        UsageError: Another process has the lock.
    """
    target = pathlib.Path(os.path.realpath(folder))
    path = target.with_name(f".{target.name}{_LOCK}")
    with _locked(path, f"{argument} {shown or repr(str(folder))}") as lock:
        # filelock acquires a file again that another process has deleted.
        lock.callback(path.unlink, missing_ok=True)
        yield


@contextlib.contextmanager
def held_by_equal_commands(folder: pathlib.Path, words: Sequence[str]) -> Iterator[None]:
    """Create a folder, and share it within a with statement with commands of the same flags.

    Args:
        folder: The folder, `output_dir` of the command.
        words: The flags that must be equal.

    Raises:
        UsageError: A process with other flags has the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    flags = hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]
    with contextlib.ExitStack() as kept:
        with waiting_for(folder / f".commands{_LOCK}"):
            for path in folder.glob(f".command-*{_LOCK}"):
                lock = try_lock(path)
                if lock is not None:
                    lock.close()
                    path.unlink(missing_ok=True)  # of a process that has ended
                elif not path.name.startswith(f".command-{flags}"):
                    raise UsageError(
                        f"output_dir {str(folder)!r} is in use by another running process with "
                        "other flags"
                    )
            for number in itertools.count():
                path = folder / f".command-{flags}-{number}{_LOCK}"
                lock = try_lock(path)
                if lock is not None:
                    kept.enter_context(lock)
                    kept.callback(path.unlink, missing_ok=True)
                    break
        yield


def _check_file(path: pathlib.Path) -> None:
    """Check a file to lock, because opening a pipe or a device can block."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise UsageError(f"{path} must be a regular file. Delete it, and repeat the command.")


def _locked(path: pathlib.Path, shown: str) -> contextlib.ExitStack:
    lock = try_lock(path)
    if lock is None:
        raise UsageError(f"{shown} is in use by another running process")
    return lock
