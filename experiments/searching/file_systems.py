"""Folders of all file systems that Arrow reads: local, S3, and Google Cloud Storage."""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from experiments.options.errors import UsageError, one_line
from keras_dml._common.extras import needing

with needing("parquet", "a folder in an object store"):
    import pyarrow as pa
    from pyarrow import fs


class Folder(NamedTuple):
    """A folder of a file system: the text that names it, the file system, and its path there."""

    place: str
    system: fs.FileSystem
    root: str

    def path(self, name: str) -> str:
        """Return the path of a file in the folder."""
        return posixpath.join(self.root, name)

    def read(self, name: str, most: int) -> bytes:
        """Read a file.

        Raises:
            OSError: The file cannot be read, or has more than `most` bytes.
        """
        with self.system.open_input_stream(self.path(name), compression=None) as stream:
            found = stream.read(most)
            if len(found) == most and stream.read(1):
                raise OSError(errno.EFBIG, f"a file of more than {most >> 20:,} MB", name)
            return found

    def files(self, endings: Sequence[str]) -> Iterator[tuple[str, int, int]]:
        """Yield path, size, and modification time in ns of all files with these endings.

        Raises:
            UsageError: The folder is missing or cannot be read.
        """
        with refusing(self.place):
            found = self.system.get_file_info(fs.FileSelector(self.root, recursive=True))
        for file in found:
            name = file.path[len(self.root) :].lstrip("/")
            is_hidden = any(part.startswith(".") for part in name.split("/"))
            fits = file.is_file and name.lower().endswith(tuple(endings))
            if fits and not is_hidden:
                yield name, file.size, file.mtime_ns or 0

    def names(self) -> set[str]:
        """Return the names in the folder. Empty if the folder is missing."""
        with refusing(self.place):
            selector = fs.FileSelector(self.root, allow_not_found=True)
            return {file.base_name for file in self.system.get_file_info(selector)}

    def exists(self) -> bool:
        """Return whether the folder exists."""
        with refusing(self.place):
            return self.system.get_file_info(self.root).type == fs.FileType.Directory


@contextlib.contextmanager
def refusing(place: str) -> Iterator[None]:
    """Convert Arrow's exceptions in the block to `UsageError`."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise UsageError(
            f"{place} cannot be used: {one_line(error)[:500].rstrip('.')}. "
            "Are address and credentials right?"
        ) from error


def opened_folder(place: str) -> Folder:
    """Return a folder, which need not exist.

    Args:
        place: A path, or an address that Arrow reads.

    Raises:
        UsageError: Arrow does not know the file system.
    """
    with refusing(place):
        system, root = fs.FileSystem.from_uri(place if "://" in place else os.path.abspath(place))
    return Folder(place, system, root.rstrip("/"))
