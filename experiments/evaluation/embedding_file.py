"""A file of embeddings that grows as they are computed, so that a stopped command resumes."""

import contextlib
import fcntl
import io
import json
import os
import pathlib
import time
import zlib
from typing import IO, Self

import numpy as np
import numpy.typing as npt

from experiments.options.errors import UsageError
from keras_dml._files.atomic import naming, replacing

DTYPES = ("float32", "float16")
# A kill loses the embeddings of at most this time. To wait for the disk at each batch is slow.
_SECONDS_BETWEEN_SYNCS = 1.0


class EmbeddingFile:
    """A `.npy` file of embeddings, `[rows, d]`, that is written row by row.

    The growing file is `PATH.partial`. `PATH.json` stores the key, the number of rows on disk, and
    their CRC-32. After a kill, the next `EmbeddingFile` with the same key resumes after these rows
    if their CRC-32 is right. With its last row the file gets its final name. A finished file with
    the same key is reused. The rows of another key are dropped with the first new row.

        with EmbeddingFile(path, len(table), key) as file:
            for batch in embed(table, first_row=file.done):
                file.append(batch)
        embeddings = file.array()

    Args:
        path: The finished file, for `numpy.load(path, mmap_mode="r")`. Its folder exists.
        rows: Number of rows, at least 1.
        key: Text that identifies the images and the model.
        dtype: "float32", or "float16" for half the size.

    Attributes:
        path, rows, dtype: The arguments.
        done: Number of written rows.

    Raises:
        UsageError: An argument is out of range, or, on entering, another process writes the file.
    """

    def __init__(
        self, path: str | os.PathLike[str], rows: int, key: str, dtype: str = "float32"
    ) -> None:
        if rows < 1:
            raise UsageError(f"rows must be at least 1, but got {rows}.")
        if dtype not in DTYPES:
            raise UsageError(f"dtype must be one of {DTYPES}, but got {dtype!r}.")
        self.path = pathlib.Path(path)
        self.rows = rows
        self.key = key
        self.dtype = np.dtype(dtype)
        self.done = 0
        self._partial = self.path.with_name(f"{self.path.name}.partial")
        self._state = self.path.with_name(f"{self.path.name}.json")
        self._stream: IO[bytes] | None = None
        self._dimensions: int | None = None
        self._synced = 0.0
        self._crc32 = 0

    def __enter__(self) -> Self:
        self._stream = open(self._partial, "a+b")
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another process may have renamed the file between the two calls.
            os.stat(self._partial)
        except OSError as error:
            self._close()
            raise UsageError(
                f"{str(self.path)!r} is being written by another running process"
            ) from error
        self._resume()
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is None:
            return
        with naming(self.path):  # replaces the error of `append` after a full disk
            if self.done:
                self._sync()
            elif not os.fstat(self._stream.fileno()).st_size:
                self._partial.unlink()
            self._close()

    def append(self, batch: npt.ArrayLike) -> None:
        """Write the next rows.

        Args:
            batch: Numbers `[b, d]`.

        Raises:
            FloatingPointError: An embedding is not finite. No row of the batch is written.
            UsageError: The batch has another width, too many rows, or a number beyond float16.
        """
        batch = np.asarray(batch)
        if batch.ndim != 2 or batch.shape[1] != (self._dimensions or batch.shape[1] or None):
            raise UsageError(
                f"batch must have shape [b, {self._dimensions or 'd'}], but got {batch.shape}."
            )
        if self.done + len(batch) > self.rows:
            raise UsageError(
                f"batch must have at most {self.rows - self.done} rows, but got {len(batch)}."
            )
        if len(batch):
            with naming(self.path):
                self._append(batch)

    def array(self) -> np.ndarray:
        """Return the finished embeddings as a read-only memory map, `[rows, d]`.

        Raises:
            UsageError: Rows are missing.
        """
        if self.done < self.rows:
            raise UsageError(
                f"{self.path} must be complete, but has {self.done} of {self.rows} rows."
            )
        return np.load(self.path, mmap_mode="r")

    def remove(self) -> None:
        """Delete the file and its state."""
        for path in (self.path, self._partial, self._state):
            path.unlink(missing_ok=True)

    @property
    def _open_stream(self) -> IO[bytes]:
        if self._stream is None:
            raise UsageError(f"{self.path} must be open: use a with statement.")
        return self._stream

    def _append(self, batch: np.ndarray) -> None:
        if not np.isfinite(batch).all():
            raise FloatingPointError("the embeddings are no longer finite")
        with np.errstate(over="ignore"):
            rows = np.ascontiguousarray(batch, self.dtype)
        if not np.isfinite(rows).all():
            raise UsageError(
                f"embeddings must be at most {np.finfo(self.dtype).max:g} for {self.dtype}, "
                f"but got {np.abs(batch).max():g}."
            )
        if self._dimensions is None:
            self._begin(batch.shape[1])
        self._open_stream.write(rows.data)
        self._crc32 = zlib.crc32(rows.data, self._crc32)
        self.done += len(rows)
        if self.done == self.rows:
            self._sync()
            self._finish()
        elif time.monotonic() - self._synced > _SECONDS_BETWEEN_SYNCS:
            self._sync()

    def _resume(self) -> None:
        """Truncate the file to the valid rows of an earlier process with the same key."""
        state = {}
        with contextlib.suppress(OSError, ValueError):
            state = json.loads(self._state.read_text())
        same = {"key": self.key, "rows": self.rows, "dtype": self.dtype.name}
        if {name: state.get(name) for name in same} != same:
            return
        try:
            self._dimensions, done = int(state["dimensions"]), int(state["done"])
        except (KeyError, TypeError, ValueError):  # damaged
            return
        written = os.fstat(self._open_stream.fileno()).st_size
        needed = len(self._header()) + done * self._dimensions * self.dtype.itemsize
        crc32 = state.get("crc32")
        if written >= needed and self._is_sound(self._open_stream, needed, crc32):
            self._open_stream.truncate(needed)
            self.done = done
            if done == self.rows:  # killed between the last row and the name
                self._finish()
        elif not written and done == self.rows and self._is_whole(needed, crc32):
            self.done = done
            self._partial.unlink()
            self._close()
        else:
            self._dimensions = None

    def _is_whole(self, needed: int, crc32: int | None) -> bool:
        try:
            with open(self.path, "rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                return size == needed and self._is_sound(stream, needed, crc32)
        except OSError:
            return False

    def _is_sound(self, stream: IO[bytes], needed: int, crc32: int | None) -> bool:
        """Return whether the first bytes of a file are the header and the written rows."""
        header = self._header()
        stream.seek(0)
        if stream.read(len(header)) != header:
            return False
        self._crc32, left = 0, needed - len(header)
        while left and (chunk := stream.read(min(left, 1 << 20))):
            self._crc32 = zlib.crc32(chunk, self._crc32)
            left -= len(chunk)
        return not left and crc32 in (None, self._crc32)

    def _begin(self, dimensions: int) -> None:
        self._dimensions, self._crc32 = dimensions, 0
        # Delete the old state first, so that it never describes the new rows.
        self._state.unlink(missing_ok=True)
        self._open_stream.truncate(0)
        self._open_stream.write(self._header())

    def _header(self) -> bytes:
        """Return the header of a `.npy` file of this shape."""
        header = io.BytesIO()
        shape = (self.rows, self._dimensions)
        described = {"descr": self.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(header, described)
        return header.getvalue()

    def _sync(self) -> None:
        self._open_stream.flush()
        os.fsync(self._open_stream.fileno())
        state = {"key": self.key, "rows": self.rows, "dtype": self.dtype.name}
        state |= {"dimensions": self._dimensions, "done": self.done, "crc32": self._crc32}
        with replacing(self._state) as temporary:
            temporary.write_text(json.dumps(state) + "\n")
        self._synced = time.monotonic()

    def _finish(self) -> None:
        os.replace(self._partial, self.path)
        self._close()

    def _close(self) -> None:
        self._open_stream.close()
        self._stream = None
