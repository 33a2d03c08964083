"""Files of embeddings: one that grows as they are computed, and `.npz` files."""

import fcntl
import io
import json
import os
import pathlib
import time
import zipfile
from collections.abc import Collection
from typing import IO, Self

import numpy as np
import numpy.typing as npt

from experiments.options.errors import UsageError
from keras_dml._common.errors import ArgumentError
from keras_dml._files.archives import opened_zip
from keras_dml._files.atomic import naming, replacing
from keras_dml._files.json_files import read_json
from keras_dml._files.manifest import Manifest

# A kill loses the embeddings of at most this time. To wait for the disk at each batch is slow.
_SECONDS_BETWEEN_SYNCS = 1.0


class EmbeddingFile:
    """A `.npy` file of float32 embeddings, `[rows, d]`, that is written row by row.

    `PATH.json` stores the key and the number of rows on disk. After a kill, the next
    `EmbeddingFile` with the same key resumes after these rows. A finished file with the same key is
    reused, unless its SHA-256 differs from the manifest of its folder. The rows of another key are
    dropped with the first new row.

        with EmbeddingFile(path, len(table), key) as file:
            for batch in embed(table, first_row=file.done):
                file.append(batch)
        embeddings = file.array()

    Args:
        path: The file, for `numpy.load(path, mmap_mode="r")`. Its folder exists.
        rows: Number of rows, at least 1.
        key: Text that identifies the images and the model.

    Attributes:
        path, rows: The arguments.
        done: Number of written rows.

    Raises:
        UsageError: On entering, another process writes the file.
    """

    def __init__(self, path: str | os.PathLike[str], rows: int, key: str) -> None:
        self.path = pathlib.Path(path)
        self.rows = rows
        self.done = 0
        self._state_file = self.path.with_name(f"{self.path.name}.json")
        self._identity = {"key": key, "rows": rows, "dtype": "float32"}
        self._manifest = Manifest(self.path.parent)
        self._stream: IO[bytes]
        self._dimensions: int | None = None
        self._synced = 0.0
        self._recorded = 0

    def __enter__(self) -> Self:
        self._stream = open(self.path, "a+b")
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._stream.close()
            raise UsageError(
                f"{str(self.path)!r} is being written by another running process"
            ) from error
        with naming(self.path):
            self._resume()
        return self

    def __exit__(self, *_: object) -> None:
        with naming(self.path), self._stream:  # replaces the error of `append` after a full disk
            if self.done > self._recorded:
                self._sync()
            elif not os.fstat(self._stream.fileno()).st_size:
                self.path.unlink()

    def append(self, batch: npt.ArrayLike) -> None:
        """Write the next rows.

        Args:
            batch: Numbers `[b, d]`.

        Raises:
            FloatingPointError: An embedding is not finite. No row of the batch is written.
        """
        rows = np.ascontiguousarray(batch, np.float32)
        if not np.isfinite(rows).all():
            raise FloatingPointError("the embeddings are no longer finite")
        with naming(self.path):
            if self._dimensions is None:
                # Delete the old state first, so that it never describes the new rows.
                self._state_file.unlink(missing_ok=True)
                self._dimensions = rows.shape[1]
                self._stream.truncate(0)
                self._stream.write(self._header(self._dimensions))
            self._stream.write(rows.data)
            self.done += len(rows)
            is_due = time.monotonic() - self._synced > _SECONDS_BETWEEN_SYNCS
            if is_due or self.done == self.rows:
                self._sync()

    def array(self) -> np.ndarray:
        """Return the complete embeddings as a read-only memory map, `[rows, d]`."""
        return np.load(self.path, mmap_mode="r")

    def _resume(self) -> None:
        """Take the valid rows of an earlier process with the same key."""
        self._manifest.checksums()  # A damaged manifest is an error before hours of work.
        try:
            state = read_json(self._state_file, {"dimensions": int, "done": int})
        except (OSError, ArgumentError):  # missing or damaged
            return
        is_ours = {name: state.get(name) for name in self._identity} == self._identity
        dimensions, done = state["dimensions"], state["done"]
        if not is_ours or dimensions < 1 or not 0 <= done <= self.rows:
            return
        header = self._header(dimensions)
        size, found = len(header) + done * dimensions * 4, os.fstat(self._stream.fileno()).st_size
        self._stream.seek(0)
        if found < size or self._stream.read(len(header)) != header:
            return
        # Keep the time of a complete file, which truncating to its own size would change.
        if found > size:
            self._stream.truncate(size)
        if done < self.rows or not self._manifest.problem_of(self.path.name, earlier=True):
            self.done, self._dimensions, self._recorded = done, dimensions, done

    def _header(self, dimensions: int) -> bytes:
        """Return the header of a `.npy` file of this shape."""
        header = io.BytesIO()
        shape = (self.rows, dimensions)
        described = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(header, described)
        return header.getvalue()

    def _sync(self) -> None:
        self._stream.flush()
        os.fsync(self._stream.fileno())
        if self.done == self.rows:  # before the state, which then describes this content
            self._manifest.record([self.path.name])
        state = self._identity | {"dimensions": self._dimensions, "done": self.done}
        with replacing(self._state_file) as temporary:
            temporary.write_text(json.dumps(state) + "\n")
        self._synced, self._recorded = time.monotonic(), self.done


_ENDING = ".npy"


class UnreadableError(ValueError):
    """A file that is damaged, or is not a `.npz` file."""


def read_npz(
    path: str | os.PathLike[str], names: Collection[str] | None = None
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return arrays by name, and the names of all arrays in the file.

    `numpy.load` checks the archive's checksums only if it reads each array to its end. A damaged
    array header may prevent that.

    Args:
        path: The file.
        names: Names of the arrays to read, if they are in the file. The default is all.

    Raises:
        UnreadableError: The file is damaged, is not a `.npz` file, has Python objects, or is
            compressed too much.
        OSError: The file cannot be opened.
    """
    try:
        with opened_zip(path) as archive:
            held = [
                name.removesuffix(_ENDING) for name in archive.namelist() if name.endswith(_ENDING)
            ]
            wanted = [name for name in held if names is None or name in names]
            return {name: _array(archive, name) for name in wanted}, held
    except OSError as error:
        if error.filename is not None:
            raise
        raise UnreadableError(str(error)) from error
    except Exception as error:  # zipfile, zlib, and NumPy raise any exception for a damaged file
        raise UnreadableError(str(error) or type(error).__name__) from error


def _array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(f"{name}{_ENDING}") as stream:
        array = np.lib.format.read_array(stream, allow_pickle=False)
        # zipfile checks the checksum at the end.
        if stream.read(1):
            raise UnreadableError(f"{name} is longer than its header says")
    return array
