"""The manifest of a folder: the SHA-256 of its files, which finds damage and survives kills."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
from collections.abc import Iterable, Iterator

from keras_dml._common.errors import ArgumentError
from keras_dml._common.types import StrPath
from keras_dml._files.atomic import naming, replace_file, turn
from keras_dml._files.json_files import read_json

MANIFEST = "manifest.json"
"""Name of the manifest in its folder."""
_STAGED = ".new-"


class DamagedError(ArgumentError):
    """A file that is missing or has changed since it was written."""


class Manifest:
    """The checksums of a folder's files, in `manifest.json`.

    New versions of files are written to `staged` paths. `commit` first writes their checksums, and
    then moves them into place. If the process is killed in between, `check` returns the staged
    path, and `recover` finishes the moves. Readers and writers take turns.

    Args:
        folder: The folder. Names of files are relative to it, with "/".
    """

    def __init__(self, folder: StrPath) -> None:
        self._folder = pathlib.Path(folder)

    def checksums(self) -> dict[str, str]:
        """Return the SHA-256 of each file by name. Empty without a manifest.

        Raises:
            DamagedError: The manifest is not the file that was written.
        """
        try:
            found: dict[str, str] = read_json(self._folder / MANIFEST, dict[str, str])
            if any(os.path.isabs(name) or ".." in name.split("/") for name in found):
                path = self._folder / MANIFEST
                raise ArgumentError(f"{path} is damaged: it names files of another folder")
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except ArgumentError as error:
            raise DamagedError(
                f"{error}. Put it back, or delete the folder and write it again"
            ) from error
        return found

    def staged(self, name: str) -> pathlib.Path:
        """Return the path of a new version of a file."""
        return self._folder / f"{_STAGED}{name}"

    def commit(self, names: Iterable[str]) -> None:
        """Replace the files of these names that have a new version, all or none of them."""
        new = {name: path for name in names if (path := self.staged(name)).is_file()}
        checksums = {name: _sha256_on_disk(path) for name, path in new.items()}
        with self._turn():
            self._write(self.checksums() | checksums)
            for name, path in new.items():
                replace_file(path, self._folder / name)

    @contextlib.contextmanager
    def replacing(self, name: str) -> Iterator[pathlib.Path]:
        """Yield a temporary path, which replaces a file if the block succeeds.

        Threads and processes that replace the same file take turns, and the last one wins.
        """
        path = self.staged(name)
        with turn(path):
            path.unlink(missing_ok=True)
            try:
                with naming(self._folder / name):
                    yield path
            except BaseException:
                path.unlink(missing_ok=True)
                raise
            self.commit([name])

    def write_text(self, name: str, text: str) -> None:
        """Replace a file by a text."""
        with self.replacing(name) as path:
            path.write_text(text)

    def record(self, names: Iterable[str]) -> None:
        """Add the checksums of files that are in their place."""
        checksums = {name: _sha256_on_disk(self._folder / name) for name in names}
        with self._turn():
            self._write(self.checksums() | checksums)

    def forget(self, names: Iterable[str]) -> None:
        """Delete files."""
        with self._turn():
            kept = self.checksums()
            for name in names:
                kept.pop(name, None)
                (self._folder / name).unlink(missing_ok=True)
            self._write(kept)

    def recover(self) -> None:
        """Finish a commit that a kill interrupted, and delete other new versions."""
        with self._turn():
            checksums = self.checksums()
            for path in self._folder.glob(f"{_STAGED}*"):
                name = path.name.removeprefix(_STAGED)
                if _is_whole(path, checksums.get(name)):
                    replace_file(path, self._folder / name)
                else:
                    path.unlink()

    def problem_of(self, name: str, earlier: bool = False) -> str:
        """Return the problem of a file, such as "is missing". Empty if the file is whole."""
        return self._found(name, earlier)[1]

    def check(self, name: str, advice: str = "", earlier: bool = False) -> pathlib.Path:
        """Return the path of a file.

        Args:
            name: Name of the file.
            advice: What the user can do if the file is damaged.
            earlier: Whether to accept a file without a checksum, because earlier versions wrote
                none for it.

        Raises:
            DamagedError: The file is missing or has changed since it was written.
        """
        path, problem = self._found(name, earlier)
        if problem:
            raise DamagedError(f"{path} {problem}{advice and '. '}{advice}")
        return path

    def _found(self, name: str, earlier: bool) -> tuple[pathlib.Path, str]:
        """Return the path of a file, and its problem."""
        path = self._folder / name
        with self._turn():
            checksum = self.checksums().get(name)
            for each in (path, self.staged(name)):
                if _is_whole(each, checksum):
                    return each, ""
        if not path.is_file():
            return path, "is missing"
        if checksum is None:
            what = f"has no checksum in {MANIFEST}, which is missing or of an earlier version"
            return path, "" if earlier else what
        return path, "is damaged: its SHA-256 differs"

    def _turn(self) -> contextlib.AbstractContextManager[None]:
        return turn(self._folder / MANIFEST)

    def _write(self, checksums: dict[str, str]) -> None:
        path = self.staged(MANIFEST)
        path.unlink(missing_ok=True)
        with naming(self._folder / MANIFEST):
            path.write_text(json.dumps(checksums, indent=1, sort_keys=True) + "\n")
            _sha256_on_disk(path)
            replace_file(path, self._folder / MANIFEST)


def sha256(path: StrPath) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sha256_on_disk(path: pathlib.Path) -> str:
    """Return the SHA-256 of a file after it is on the disk."""
    with path.open("r+b") as stream:  # Windows does not sync a file that is open for reading
        os.fsync(stream.fileno())
    return sha256(path)


def _is_whole(path: pathlib.Path, checksum: str | None) -> bool:
    # A pipe would block.
    return checksum is not None and path.is_file() and sha256(path) == checksum
