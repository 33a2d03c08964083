"""Atomic writes of files and folders, and consistent reads while others write."""

import contextlib
import errno
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import TypeVar

from keras_dml._common.checks import check_path
from keras_dml._common.errors import ArgumentError, argument_error
from keras_dml._common.types import StrPath

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_Read = TypeVar("_Read")


@contextlib.contextmanager
def replacing(path: StrPath) -> Iterator[pathlib.Path]:
    """Yield a temporary path next to `path`, which replaces `path` if the block succeeds.

    Threads and processes that replace the same file take turns, and the last one wins.

    Args:
        path: The file to write. Its folder must exist.

    Yields:
        The temporary path, a `pathlib.Path`, which does not exist yet.

    Raises:
        ValueError: `path` is a folder.
    """
    path = pathlib.Path(path)
    temporary = path.with_name(f".writing-{path.name}")
    with turn(_file(path)):
        try:
            # What a killed process left, or a link that another user put there.
            temporary.unlink(missing_ok=True)
            with naming(path):
                yield temporary
                replace_file(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def replace_file(source: StrPath, path: StrPath) -> None:
    """Rename a file to `path`, and replace the file that is there.

    Raises:
        ValueError: `path` is a folder.
    """
    # The error of the system differs between platforms, and names no next step.
    if os.path.isdir(path) and not os.path.islink(path):
        raise ArgumentError(
            f"{os.fspath(path)} must be a file to replace, but got a folder. Move the folder away, "
            "and repeat."
        )
    os.replace(source, path)


@contextlib.contextmanager
def replacing_all(**paths: StrPath) -> Iterator[list[pathlib.Path]]:
    """Yield temporary paths of several files, which replace the files if the block succeeds.

    Args:
        **paths: The files to write, by the names of the arguments for the message.

    Yields:
        As `replacing`, in the order of the arguments.

    Raises:
        ValueError: Two paths are the same file.
    """
    files: dict[pathlib.Path, str] = {}
    for name, path in paths.items():
        first = files.setdefault(_file(path), name)
        if first != name:
            raise argument_error(name, f"another file than {first}", os.fspath(path))
    with contextlib.ExitStack() as stack:
        # In one order in all threads and processes: otherwise, two can wait for each other.
        written = {files[file]: stack.enter_context(replacing(file)) for file in sorted(files)}
        yield [written[name] for name in paths]


def _file(path: StrPath) -> pathlib.Path:
    """Return the absolute path of a file in its real folder."""
    path = pathlib.Path(path)
    return pathlib.Path(os.path.realpath(path.parent), path.name)


@contextlib.contextmanager
def naming(path: StrPath) -> Iterator[None]:
    """Add this path to an OSError without a file name, such as an error of a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        # NumPy reports the number of written bytes of an array, and no error number.
        number = errno.EIO if error.errno is None else error.errno
        raise OSError(number, error.strerror or str(error), os.fspath(path)) from error


@contextlib.contextmanager
def replacing_folder(path: StrPath, marker: str, what: str) -> Iterator[pathlib.Path]:
    """Yield a new folder next to `path`, which replaces `path` if the block succeeds.

    An existing folder is first moved aside, and removed last. After an error, or after a repeat of
    a killed process, only the old or the new folder remains. Threads and processes that replace the
    same folder take turns.

    Args:
        path: The folder to write. Its parent must exist.
        marker: A file in every such folder. Folders without it are not replaced.
        what: Name of such a folder, for the message.

    Yields:
        The temporary path, which does not exist yet.

    Raises:
        ValueError: The parent of `path` is missing, or `path` exists and lacks `marker`.
    """
    target, written, aside = _names(path)
    with turn(target):
        if not target.parent.is_dir():
            raise argument_error("path", "in an existing folder", os.fspath(path))
        if target.exists() and not (target / marker).is_file():
            wanted = f"a new folder, or {what} to replace"
            raise argument_error("path", wanted, os.fspath(path))
        # Remains of a killed process. The names are fixed, so they do not accumulate.
        shutil.rmtree(written, ignore_errors=True)
        if aside.exists() and target.exists():
            shutil.rmtree(aside)
        try:
            with naming(target):
                yield written
                _rename(written, target, aside)
        finally:
            shutil.rmtree(written, ignore_errors=True)


def make_folder(path: StrPath) -> None:
    """Create a folder and its parents, unless it exists.

    If a killed replacement has moved the folder aside, it is moved back. If it has left the old
    folder next to the new one, the old folder is deleted.
    """
    target, _, aside = _names(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with turn(target):
        if aside.exists() and target.exists():
            shutil.rmtree(aside)
        elif aside.exists():
            os.rename(aside, target)
        target.mkdir(exist_ok=True)


def replace_folder(source: StrPath, path: StrPath) -> None:
    """Rename a folder to `path`, and remove the folder that is there.

    After a kill, `read_folder` and `make_folder` find the old or the new folder.

    Args:
        source: The new folder, next to `path`.
        path: The folder to replace. It exists.
    """
    target, _, aside = _names(path)
    with turn(target):
        if aside.exists() and target.exists():  # remains of a killed process
            shutil.rmtree(aside)
        _rename(pathlib.Path(source), target, aside)


def read_folder(path: StrPath, read: Callable[[pathlib.Path], _Read]) -> _Read:
    """Call `read` on a folder of `replacing_folder`, and return a result from one state of it.

    Readers and writers of the folder take turns, if the system has locks.

    Args:
        path: The folder.
        read: Function of the folder to read: `path`, or the old folder of a replacement that was
            killed after moving it aside. The next `replacing_folder` continues from there.
    """
    target, _, aside = _names(path)
    with turn(target):
        moved = aside.exists() and not target.exists()
        return read(aside if moved else pathlib.Path(path))


@contextlib.contextmanager
def turn(target: pathlib.Path) -> Iterator[None]:
    """Lock `target` against other threads and processes, if the system has locks."""
    path = target.with_name(f".{target.name}.turn")
    lock = _locked(path)
    try:
        yield
    finally:
        if lock is not None:
            # Unlink while locked, so that a waiting thread sees that the file is gone and creates a
            # new one.
            with contextlib.suppress(OSError):
                os.unlink(path)
            # Closing is not enough, because a process that was forked in the meantime can have it
            # open too.
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)


def _locked(path: pathlib.Path) -> int | None:
    """Lock a file, and return its descriptor. Return None if the system has no locks."""
    if fcntl is None:
        return None
    while True:
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
            lock = os.open(path, flags, 0o666)
        except OSError:  # missing or read-only folder, or a link
            return None
        kept = False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # The previous owner may have deleted the file since it was opened.
            kept = os.fstat(lock).st_nlink > 0
            if kept:
                return lock
        except OSError:  # a file system without locks
            with contextlib.suppress(OSError):
                os.unlink(path)
            return None
        finally:
            if not kept:
                os.close(lock)


def _names(path: StrPath) -> tuple[pathlib.Path, pathlib.Path, pathlib.Path]:
    """Return the folder, its name during writing, and the name of the old folder set aside."""
    target = pathlib.Path(os.path.realpath(check_path("path", path)))
    if not target.name:
        raise argument_error("path", "a folder within another", os.fspath(path))
    written, aside = (target.with_name(f".{target.name}.{what}") for what in ("partial", "old"))
    return target, written, aside


def _rename(source: pathlib.Path, target: pathlib.Path, aside: pathlib.Path) -> None:
    if not target.exists():
        os.rename(source, target)
        shutil.rmtree(aside, ignore_errors=True)
        return
    os.rename(target, aside)
    try:
        os.rename(source, target)
    except BaseException:
        os.rename(aside, target)
        raise
    shutil.rmtree(aside)
