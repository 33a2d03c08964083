"""Folders wherever Arrow reads them: here, in S3, in Google's storage."""

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
    """Whether a text names a file system, as s3://BUCKET/FOLDER does, and not a path here."""
    return "://" in place


class Folder(NamedTuple):
    """A folder of a file system."""

    place: str
    system: fs.FileSystem
    root: str

    def path(self, name: str) -> str:
        """Of a file in it, for its file system."""
        return posixpath.join(self.root, name)

    def read(self, name: str) -> bytes:
        """A file's bytes.

        Raises:
            OSError: it cannot be read.
        """
        with self.system.open_input_stream(self.path(name), compression=None) as stream:
            return stream.read()

    def files(self, endings: Sequence[str]) -> Iterator[tuple[str, int, int]]:
        """The files below it with one of these endings, none of them hidden: path from the folder,
        bytes, time of change in ns.

        Raises:
            UsageError: the folder is not there, or cannot be read.
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
        """Of the files in it, none where it is not there."""
        with refusing(self.place):
            selector = fs.FileSelector(self.root, allow_not_found=True)
            return {one.base_name for one in self.system.get_file_info(selector)}

    def is_there(self) -> bool:
        """Whether it is a folder, or in an object store the beginning of a name."""
        with refusing(self.place):
            return self.system.get_file_info(self.root).type == fs.FileType.Directory

    def make(self) -> None:
        """Make it, unless it is there."""
        with refusing(self.place):
            self.system.create_dir(self.root, recursive=is_uri(self.place))


@contextlib.contextmanager
def refusing(place: str) -> Iterator[None]:
    """Within it what Arrow says of a place becomes a `UsageError`."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise UsageError(
            f"{place} cannot be used: {one_line(error)[:500].rstrip('.')}. "
            "Are address and credentials right?"
        ) from error


def opened_folder(place: str | os.PathLike[str]) -> Folder:
    """A folder here or elsewhere, which need not exist.

    Args:
        place: a path, or a URI that Arrow knows.

    Raises:
        UsageError: no such file system.
    """
    text = os.fspath(place)
    if not is_uri(text):
        return Folder(text, fs.LocalFileSystem(), os.path.abspath(text))
    with refusing(text):
        system, root = fs.FileSystem.from_uri(text)
    return Folder(text, system, root.rstrip("/"))
