"""Reads of files that a stranger can name: only regular files, and only up to a size."""

import errno
import os
import stat

from keras_dml._common.types import StrPath

MOST_BYTES = 256 * 2**20
"""Largest size of an image file by default."""

MOST_TEXT = 2**30
"""Largest size of a text file: a table, a list, or JSON."""
# Content of a small compressed file, and of a large one per byte: numbers rarely compress much.
_MOST_CONTENT, _MOST_RATIO = 256 * 2**20, 20
# A named pipe would block. On Windows, files are text by default.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def most_content(size: int) -> int:
    """Return how many bytes a compressed file of `size` bytes can have after decompression."""
    return _MOST_CONTENT + _MOST_RATIO * size


def check_regular(path: StrPath, most_bytes: int = MOST_BYTES) -> None:
    """Check a file without opening it, because opening a device can change its state.

    Raises:
        OSError: The file is missing, a folder, pipe, or device, or larger than `most_bytes`.
    """
    _check(os.stat(path), path, most_bytes)


def read_regular(path: StrPath, most_bytes: int = MOST_BYTES, first: int | None = None) -> bytes:
    """Read a file.

    Args:
        path: The file.
        most_bytes: Largest size of the file.
        first: Number of bytes to read. None: the file.

    Raises:
        OSError: As for `check_regular`.
    """
    check_regular(path, most_bytes)
    with open(os.open(path, _FLAGS), "rb") as stream:
        status = os.fstat(stream.fileno())
        _check(status, path, most_bytes)  # it can have been replaced
        return stream.read(status.st_size if first is None else first)


def _check(status: os.stat_result, path: StrPath, most_bytes: int) -> None:
    number, reason = 0, ""
    if stat.S_ISDIR(status.st_mode):
        number, reason = errno.EISDIR, os.strerror(errno.EISDIR)
    elif not stat.S_ISREG(status.st_mode):
        number, reason = errno.EINVAL, "not a regular file"
    elif status.st_size > most_bytes:
        number, reason = errno.EFBIG, f"a file of more than {most_bytes >> 20:,} MB"
    if number:
        raise OSError(number, reason, os.fspath(path))
