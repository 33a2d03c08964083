"""Files and folders that are written whole or not at all, and read whole while others write."""

import contextlib
import ctypes
import errno
import os
import pathlib
import shutil
import threading
from collections.abc import Callable, Iterator
from typing import TypeAlias, TypeVar

from keras_dml.checks import check_path
from keras_dml.errors import ArgumentError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_Read = TypeVar("_Read")
_Identity: TypeAlias = tuple[int, int]
# Reads of a folder that is replaced meanwhile, until those who replace it are made to wait.
_HURRIED_READS = 4
_DESCRIPTORS = pathlib.Path("/proc/self/fd")
# What each thread replaces at the moment.
_in_hand = threading.local()


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """A temporary path beside `path` that takes its place when the block ends without an error.

    Threads and processes that replace one file take turns: the last one's is left.

    Args:
        path: the file to write; its folder must exist.

    Yields:
        The temporary path, a `pathlib.Path`, not made yet.

    Raises:
        ValueError: this thread replaces `path` already.
    """
    path = pathlib.Path(path)
    temporary = path.with_name(f".writing-{path.name}")
    with _turn(pathlib.Path(os.path.realpath(path.parent), path.name)):
        try:
            # What a killed process left, or a link that another user put there.
            temporary.unlink(missing_ok=True)
            with naming(path):
                yield temporary
                os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Within it an OSError that names no file, as of writing to a full disk, names this one."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        # NumPy tells how many bytes of an array went through, and no number.
        number = errno.EIO if error.errno is None else error.errno
        raise OSError(number, error.strerror or str(error), os.fspath(path)) from error


@contextlib.contextmanager
def replacing_folder(
    path: str | os.PathLike[str], marker: str, what: str
) -> Iterator[pathlib.Path]:
    """A new folder beside `path` that takes its place when the block ends without an error.

    A folder already there changes places with it in one go, where the system can do that; elsewhere
    it goes aside first. It is removed last. After an error, and after a process that was killed has
    been repeated, nothing but the old or the new folder is left. Threads and processes that replace
    one folder take turns.

    Args:
        path: the folder to write; its parent must exist.
        marker: a file that every such folder has: what lacks it is not replaced.
        what: what such a folder is called, for the message.

    Yields:
        The temporary path, not made yet.

    Raises:
        ValueError: the parent of `path` is missing, `path` exists and lacks `marker`, or this
            thread replaces it already.
    """
    target, written, aside = _names(path)
    with _turn(target):
        if not target.parent.is_dir():
            raise ArgumentError(
                f"path must lie in an existing folder. Received: path={os.fspath(path)!r}"
            )
        if target.exists() and not (target / marker).is_file():
            raise ArgumentError(
                f"path must be new or hold {what}, which is then replaced. "
                f"Received: path={os.fspath(path)!r}, which is something else"
            )
        # What a process that was killed has left: the names are always the same, so it does not
        # add up.
        shutil.rmtree(written, ignore_errors=True)
        if aside.exists() and target.exists():
            shutil.rmtree(aside)
        try:
            with naming(target):
                yield written
                _rename(written, target, aside)
        finally:
            shutil.rmtree(written, ignore_errors=True)


def read_folder(path: str | os.PathLike[str], read: Callable[[pathlib.Path], _Read]) -> _Read:
    """What `read` makes of a folder of `replacing_folder`: of the old one or of the new, no mix.

    Args:
        path: the folder.
        read: is given where to read, which may be another name of the folder; called again where
            the folder was replaced, and so deleted, beneath it.

    Raises:
        Whatever `read` raises at a folder that stays.
    """
    for hurried in range(_HURRIED_READS, -1, -1):
        # At last who replaces it waits, where there are locks.
        with _turn(_names(path)[0]) if not hurried else contextlib.nullcontext():
            standing = _standing(path)
            with _pinned(standing) as (folder, identity):
                try:
                    found = read(folder)
                except Exception:
                    if not hurried or identity == _identity(_standing(path)):
                        raise
                else:
                    # By its other name it was one and the same all the time.
                    if folder != standing or identity == _identity(_standing(path)):
                        return found
    raise OSError(errno.EBUSY, "replaced whenever it was read", os.fspath(path))


@contextlib.contextmanager
def _pinned(folder: pathlib.Path) -> Iterator[tuple[pathlib.Path, _Identity | None]]:
    """A name for what stands there now, whatever is put in its place, where Linux has one; and who
    it is, a number that no other folder gets meanwhile."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (OSError, AttributeError):  # missing, or a system that opens no folder
        yield folder, _identity(folder)
        return
    try:
        pinned = _DESCRIPTORS / str(opened)
        yield pinned if pinned.is_dir() else folder, _identity(opened)
    finally:
        os.close(opened)


def _identity(folder: pathlib.Path | int) -> _Identity | None:
    try:
        status = os.stat(folder)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _standing(path: str | os.PathLike[str]) -> pathlib.Path:
    """Where the folder of `replacing_folder` stands: `path`, or while it is replaced, beside it.

    A process that is killed after the old folder went aside (see there) and before the new one came
    has left the old one there; the next `replacing_folder` goes on from that.
    """
    target, _, aside = _names(path)
    return aside if aside.exists() and not target.exists() else pathlib.Path(path)


@contextlib.contextmanager
def _turn(target: pathlib.Path) -> Iterator[None]:
    """Within it no other thread or process has a turn at `target`; where there are no locks, any.

    Raises:
        ValueError: it is this thread's already, which would wait for itself.
    """
    held: set[pathlib.Path] = _in_hand.__dict__.setdefault("targets", set())
    if target in held:
        raise ArgumentError(
            "path must not be what this thread is replacing at the moment. "
            f"Received: path={os.fspath(target)!r}"
        )
    held.add(target)
    path = target.with_name(f".{target.name}.turn")
    try:
        lock = _locked(path)
        try:
            yield
        finally:
            if lock is not None:
                # While it is locked: who waits for it sees that it is gone, and makes another.
                with contextlib.suppress(OSError):
                    os.unlink(path)
                # Not by closing it alone: a process forked meanwhile may have it open too.
                fcntl.flock(lock, fcntl.LOCK_UN)
                os.close(lock)
    finally:
        held.discard(target)


def _locked(path: pathlib.Path) -> int | None:
    """A file's lock, as its descriptor; None where it cannot be had: whoever may write, writes."""
    if fcntl is None:
        return None
    while True:
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
            lock = os.open(path, flags, 0o666)
        except OSError:  # no such folder, one that is read-only, or a link
            return None
        kept = False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # The one whose turn it was may have deleted it since it was opened.
            kept = _identity(lock) == _identity(path)
            if kept:
                return lock
        except OSError:  # a file system without locks
            with contextlib.suppress(OSError):
                os.unlink(path)
            return None
        finally:
            if not kept:
                os.close(lock)


def _names(path: str | os.PathLike[str]) -> tuple[pathlib.Path, pathlib.Path, pathlib.Path]:
    """The folder, where it is written, and where the old one goes meanwhile."""
    target = pathlib.Path(os.path.realpath(check_path("path", path)))
    if not target.name:
        raise ArgumentError(
            "path must be a folder within another. "
            f"Received: path={os.fspath(path)!r}, the root of a file system"
        )
    written, aside = (target.with_name(f".{target.name}.{what}") for what in ("partial", "old"))
    return target, written, aside


def _rename(source: pathlib.Path, target: pathlib.Path, aside: pathlib.Path) -> None:
    if not target.exists():
        os.rename(source, target)
        shutil.rmtree(aside, ignore_errors=True)
        return
    if _exchanged(source, target):
        shutil.rmtree(source)
        return
    os.rename(target, aside)
    try:
        os.rename(source, target)
    except BaseException:
        os.rename(aside, target)
        raise
    shutil.rmtree(aside)


def _exchanged(first: pathlib.Path, second: pathlib.Path) -> bool:
    """Whether two folders have changed places: Linux does that on the usual file systems."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (OSError, AttributeError, TypeError):  # another system
        return False
    paths = (os.fsencode(path.absolute()) for path in (first, second))
    here, exchange = -100, 2  # AT_FDCWD of <fcntl.h>, RENAME_EXCHANGE of <stdio.h>
    return bool(rename(here, next(paths), here, next(paths), exchange) == 0)
