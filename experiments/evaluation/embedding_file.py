"""A file of embeddings that grows as they are computed, so that a stopped command resumes."""

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

# A kill loses the embeddings of at most this time. To wait for the disk at each batch is slow.
_SECONDS_BETWEEN_SYNCS = 1.0


class EmbeddingFile:
    """A `.npy` file of float32 embeddings, `[rows, d]`, that is written row by row.

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
        self._partial = self.path.with_name(f"{self.path.name}.partial")
        self._state_file = self.path.with_name(f"{self.path.name}.json")
        self._identity = {"key": key, "rows": rows, "dtype": "float32"}
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
            UsageError: The batch has another width or too many rows.
        """
        rows = np.ascontiguousarray(batch, np.float32)
        most = self.rows - self.done
        if rows.ndim != 2 or len(rows) > most or self._dimensions not in (None, rows.shape[1]):
            raise UsageError(
                f"batch must have shape [b, {self._dimensions or 'd'}] with b up to {most}, but "
                f"got {rows.shape}."
            )
        if not np.isfinite(rows).all():
            raise FloatingPointError("the embeddings are no longer finite")
        if len(rows):
            with naming(self.path):
                self._append(rows)

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

    @property
    def _open_stream(self) -> IO[bytes]:
        if self._stream is None:
            raise UsageError(f"{self.path} must be open: use a with statement.")
        return self._stream

    def _append(self, rows: npt.NDArray[np.float32]) -> None:
        if self._dimensions is None:
            # Delete the old state first, so that it never describes the new rows.
            self._state_file.unlink(missing_ok=True)
            self._dimensions = rows.shape[1]
            self._open_stream.truncate(0)
            self._open_stream.write(self._header(self._dimensions))
        self._open_stream.write(rows.data)
        self._crc32 = zlib.crc32(rows.data, self._crc32)
        self.done += len(rows)
        if self.done == self.rows:
            self._sync()
            self._finish()
        elif time.monotonic() - self._synced > _SECONDS_BETWEEN_SYNCS:
            self._sync()

    def _resume(self) -> None:
        """Take the valid rows of an earlier process with the same key."""
        try:
            state = json.loads(self._state_file.read_text())
            is_ours = {name: state.get(name) for name in self._identity} == self._identity
            dimensions, done, crc32 = (int(state[key]) for key in ("dimensions", "done", "crc32"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # missing or damaged
            return
        header = self._header(dimensions)
        size = len(header) + done * dimensions * 4
        if is_ours and _is_sound(self._partial, header, size, crc32):
            self._open_stream.truncate(size)
            self.done, self._dimensions, self._crc32 = done, dimensions, crc32
            if done == self.rows:  # killed between last row and name
                self._finish()
        elif is_ours and done == self.rows and _is_sound(self.path, header, size, crc32):
            self.done = done
            self._partial.unlink()
            self._close()

    def _header(self, dimensions: int) -> bytes:
        """Return the header of a `.npy` file of this shape."""
        header = io.BytesIO()
        shape = (self.rows, dimensions)
        described = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(header, described)
        return header.getvalue()

    def _sync(self) -> None:
        self._open_stream.flush()
        os.fsync(self._open_stream.fileno())
        state = self._identity | {
            "dimensions": self._dimensions, "done": self.done, "crc32": self._crc32
        }  # fmt: skip
        with replacing(self._state_file) as temporary:
            temporary.write_text(json.dumps(state) + "\n")
        self._synced = time.monotonic()

    def _finish(self) -> None:
        os.replace(self._partial, self.path)
        self._close()

    def _close(self) -> None:
        self._open_stream.close()
        self._stream = None


def _is_sound(path: pathlib.Path, header: bytes, size: int, crc32: int) -> bool:
    """Return whether a file starts with a header and with rows of this CRC-32."""
    try:
        with open(path, "rb") as stream:
            if stream.read(len(header)) != header:
                return False
            found, left = 0, size - len(header)
            while left and (chunk := stream.read(min(left, 1 << 20))):
                found = zlib.crc32(chunk, found)
                left -= len(chunk)
    except OSError:
        return False
    return not left and found == crc32
