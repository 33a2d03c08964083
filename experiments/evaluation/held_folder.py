"""A folder that one process at a time writes into."""

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
    """A file's lock, until it is closed or the process ends, however it does; None: others have it.

    The file stays: to delete it would take the lock from under a process that waits for it.

    Raises:
        OSError: the path is a link, a pipe, or something else that is not a regular file (another
            user may have made it), or its file system has no locks.
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
    """A file's descriptor; nothing is truncated, no link followed, no pipe waited for."""
    return os.open(path, flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


@contextlib.contextmanager
def waiting_for(path: pathlib.Path) -> Iterator[None]:
    """Within it this process has a file's lock; till others let go of it, it waits."""
    while (lock := try_lock(path)) is None:
        time.sleep(0.1)
    with lock:
        yield


def hold(folder: pathlib.Path, argument: str) -> TextIO:
    """The folder's lock, as of `try_lock`.

    Args:
        folder: which exists.
        argument: what it was given as, for the message.

    Raises:
        UsageError: another process holds it.
    """
    lock = try_lock(folder / _LOCK)
    if lock is None:
        raise _in_use(f"{argument} {str(folder)!r}")
    return lock


def _in_use(what: str) -> UsageError:
    return UsageError(f"{what} is in use by another running process")


@contextlib.contextmanager
def held(folder: pathlib.Path, argument: str) -> Iterator[None]:
    """`hold` within a with statement."""
    with hold(folder, argument):
        yield


@contextlib.contextmanager
def opened(output_dir: pathlib.Path) -> Iterator[None]:
    """Create the folder of a command's results, and `hold` it within a with statement."""
    output_dir.mkdir(parents=True, exist_ok=True)
    with hold(output_dir, "output_dir"):
        yield


@contextlib.contextmanager
def held_beside(folder: pathlib.Path, argument: str, shown: str = "") -> Iterator[None]:
    """`held` of a folder that is replaced as a whole: the lock lies beside it, and goes at the end.

    Args:
        folder: which need not exist; its parent must.
        argument: as of `hold`.
        shown: the name in the message. Default: the folder.
    """
    target = pathlib.Path(os.path.realpath(folder))
    path = target.with_name(f".{target.name}{_LOCK}")
    while True:
        lock = try_lock(path)
        if lock is None:
            raise _in_use(f"{argument} {shown or repr(str(folder))}")
        if _is_open(path, lock):
            break
        lock.close()  # of a file that its process has deleted since it was opened
    with lock:
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _is_open(path: pathlib.Path, file: TextIO) -> bool:
    """Whether an open file is the one at a path."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    return False


class TemporaryFolder:
    """A folder of this process alone in the system's temporary one, deleted when the process ends.

    One that is killed leaves its own, which the next one with the same prefix deletes: nobody has
    its lock.

    Args:
        prefix: what its name begins with.

    Attributes:
        path: of it.
    """

    def __init__(self, prefix: str) -> None:
        delete_abandoned(prefix)
        made = pathlib.Path(tempfile.mkdtemp(prefix=f".{prefix}"))
        self._lock = try_lock(made / _LOCK)
        # Only now that it is locked has it the name that others look for.
        self.path = made.with_name(made.name.removeprefix("."))
        os.rename(made, self.path)
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def delete_abandoned(prefix: str) -> None:
    """Delete each `TemporaryFolder` of a process that was killed."""
    for folder in pathlib.Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # deleted since it was listed
            status = folder.lstat()
            # Another user may have put anything there, links to this user's files too.
            if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
                continue
            if (lock := try_lock(folder / _LOCK)) is not None:
                with lock:
                    shutil.rmtree(folder, ignore_errors=True)
