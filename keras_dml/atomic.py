"""Files and folders that are written whole or not at all."""

import contextlib
import ctypes
import errno
import os
import pathlib
import shutil
from collections.abc import Iterator

from keras_dml.checks import check_path
from keras_dml.errors import ArgumentError


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """A temporary path beside `path` that takes its place when the block ends without an error.

    Args:
        path: the file to write; its folder must exist.

    Yields:
        The temporary path, a `pathlib.Path`, not made yet.
    """
    path = pathlib.Path(path)
    temporary = path.with_name(f".writing-{path.name}")
    try:
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
    been repeated, nothing but the old or the new folder is left.

    Args:
        path: the folder to write; its parent must exist.
        marker: a file that every such folder has: what lacks it is not replaced.
        what: what such a folder is called, for the message.

    Yields:
        The temporary path, not made yet.

    Raises:
        ValueError: the parent of `path` is missing, or `path` exists and lacks `marker`.
    """
    target, written, aside = _names(path)
    if not target.parent.is_dir():
        raise ArgumentError(
            f"path must lie in an existing folder. Received: path={os.fspath(path)!r}"
        )
    if target.exists() and not (target / marker).is_file():
        raise ArgumentError(
            f"path must be new or hold {what}, which is then replaced. "
            f"Received: path={os.fspath(path)!r}, which is something else"
        )
    # What a process that was killed has left: the names are always the same, so it does not add up.
    shutil.rmtree(written, ignore_errors=True)
    if aside.exists() and target.exists():
        shutil.rmtree(aside)
    try:
        with naming(target):
            yield written
            _rename(written, target, aside)
    finally:
        shutil.rmtree(written, ignore_errors=True)


def standing_folder(path: str | os.PathLike[str]) -> pathlib.Path:
    """Where the folder of `replacing_folder` stands: `path`, or while it is replaced, beside it.

    A process that is killed after the old folder went aside (see there) and before the new one came
    has left the old one there; the next `replacing_folder` goes on from that.
    """
    target, _, aside = _names(path)
    return aside if aside.exists() and not target.exists() else pathlib.Path(path)


def _names(path: str | os.PathLike[str]) -> tuple[pathlib.Path, pathlib.Path, pathlib.Path]:
    """The folder, where it is written, and where the old one goes meanwhile."""
    target = pathlib.Path(os.path.realpath(check_path("path", path)))
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
