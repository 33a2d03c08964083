"""Folders of any file system that Arrow reads: local, S3, and Google Cloud Storage."""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from experiments.options.errors import UsageError, one_line
from keras_dml._common.extras import needing

with needing("parquet", "what reads from any file system"):
    import pyarrow as pa
    from pyarrow import fs

__all__ = ["Folder", "is_uri", "opened_folder"]


def is_uri(place: str) -> bool:
    """Return whether a text is an address, such as s3://BUCKET/FOLDER, and not a path."""
    return "://" in place


class Folder(NamedTuple):
    """A folder of a file system."""

    place: str
    system: fs.FileSystem
    root: str

    def path(self, name: str) -> str:
        """Return the path of a file for the file system."""
        return posixpath.join(self.root, name)

    def read(self, name: str) -> bytes:
        """Read a file.

        Raises:
            OSError: if the file cannot be read.
        """
        with self.system.open_input_stream(self.path(name), compression=None) as stream:
            return stream.read()

    def files(self, endings: Sequence[str]) -> Iterator[tuple[str, int, int]]:
        """Yield path, size, and modification time in ns of all files with these endings.

        Raises:
            UsageError: if the folder is missing or cannot be read.
        """
        with refusing(self.place):
            found = self.system.get_file_info(fs.FileSelector(self.root, recursive=True))
        for one in found:
            name = one.path[len(self.root) :].lstrip("/")
            hidden = any(part.startswith(".") for part in name.split("/"))
            if (
                one.type == fs.FileType.File
                and name.lower().endswith(tuple(endings))
                and not hidden
            ):
                yield name, one.size, one.mtime_ns or 0

    def names(self) -> set[str]:
        """Return the names in the folder. Empty if the folder is missing."""
        with refusing(self.place):
            selector = fs.FileSelector(self.root, allow_not_found=True)
            return {one.base_name for one in self.system.get_file_info(selector)}

    def is_there(self) -> bool:
        """Return whether the folder exists."""
        with refusing(self.place):
            return self.system.get_file_info(self.root).type == fs.FileType.Directory

    def make(self) -> None:
        """Create the folder if it is missing."""
        with refusing(self.place):
            self.system.create_dir(self.root, recursive=is_uri(self.place))


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


def opened_folder(place: str | os.PathLike[str]) -> Folder:
    """Return a folder, which need not exist.

    Args:
        place: a path, or an address that Arrow reads.

    Raises:
        UsageError: if Arrow does not know the file system.
    """
    text = os.fspath(place)
    if not is_uri(text):
        return Folder(text, fs.LocalFileSystem(), os.path.abspath(text))
    with refusing(text):
        system, root = fs.FileSystem.from_uri(text)
    return Folder(text, system, root.rstrip("/"))
