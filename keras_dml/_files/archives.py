"""Limits on zip files (`.npz`, `.keras`), which a stranger can compress to a thousandth."""

import contextlib
import os
import sys
import zipfile
from collections.abc import Iterator

from keras_dml._common.errors import ArgumentError
from keras_dml._common.regular_files import check_regular, most_content
from keras_dml._common.types import StrPath

# The other methods decompress more than a read asks for.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@contextlib.contextmanager
def opened_zip(path: StrPath) -> Iterator[zipfile.ZipFile]:
    """Yield an open zip file. Python reads at most the size that the file states for an entry.

    Raises:
        OSError: The file is missing, a pipe, or a device.
        ValueError: The content has more than 256 MB and 20 times the size of the file.
        zipfile.BadZipFile: The file is not a zip file.
    """
    check_regular(path, sys.maxsize)
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        most = most_content(os.path.getsize(path))
        if sum(entry.file_size for entry in entries) > most:
            raise ArgumentError(
                f"The content of {os.fspath(path)} must have at most {most >> 20:,} MB, but got "
                "more: it is compressed too much. Save it without compression."
            )
        if any(entry.compress_type not in _METHODS for entry in entries):
            raise ArgumentError(
                f"The content of {os.fspath(path)} must be stored or deflated, but got another "
                "compression. Save it without compression."
            )
        yield archive


def check_zip(path: StrPath) -> None:
    """Raise as `opened_zip` does."""
    with opened_zip(path):
        pass
