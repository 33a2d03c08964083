"""The SHA-256 of each file of a run's folder, and the replacement of several files in one step."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
from collections.abc import Iterable

from experiments.options.errors import UsageError
from keras_dml._files.atomic import replacing

MANIFEST = "manifest.json"
_STAGED = ".new-"


class DamagedError(UsageError):
    """A file of a run that is missing or has changed since the run wrote it."""


class Manifest:
    """The checksums of a folder's files, in `manifest.json`.

    New versions of files are written to `staged` paths. `commit` first writes their checksums, and
    then moves them into place. If the process is killed in between, `recover` finishes the moves.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder

    def checksums(self) -> dict[str, str]:
        """Return the SHA-256 of each file by name.

        Raises:
            DamagedError: The manifest is not the file that was written.
        """
        path = self._folder / MANIFEST
        try:
            found = json.loads(path.read_text())
            return {str(name): str(digest) for name, digest in found.items()}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except PermissionError:
            raise
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            raise DamagedError(
                f"{path} is damaged. Delete the folder, and the same command begins again"
            ) from error

    def staged(self, name: str) -> pathlib.Path:
        """Return the path of a new version of a file."""
        return self._folder / f"{_STAGED}{name}"

    def commit(self, names: Iterable[str]) -> None:
        """Replace the files of these names that have a new version, all or none of them."""
        new = {name: path for name in names if (path := self.staged(name)).is_file()}
        self._write({**self.checksums(), **{name: _sha256(path) for name, path in new.items()}})
        for name, path in new.items():
            os.replace(path, self._folder / name)

    def forget(self, names: Iterable[str]) -> None:
        """Delete files."""
        kept = self.checksums()
        for name in names:
            kept.pop(name, None)
            (self._folder / name).unlink(missing_ok=True)
        self._write(kept)

    def recover(self) -> None:
        """Finish a commit that a kill interrupted, and delete other new versions."""
        checksums = self.checksums()
        for path in self._folder.glob(f"{_STAGED}*"):
            name = path.name.removeprefix(_STAGED)
            if checksums.get(name) == _sha256(path):
                os.replace(path, self._folder / name)
            else:
                path.unlink()

    def problem_of(self, name: str) -> str:
        """Return what is wrong with a file, such as "is missing". Empty if it is whole."""
        path, checksums = self._folder / name, self.checksums()
        if not path.is_file():
            return "is missing"
        if name not in checksums:
            return f"has no checksum in {MANIFEST}: it is of an earlier version"
        return "" if checksums[name] == _sha256(path) else "is damaged: its SHA-256 differs"

    def check(self, name: str, advice: str = "") -> pathlib.Path:
        """Return the path of a file.

        Args:
            name: Name of the file.
            advice: What the user can do if the file is damaged.

        Raises:
            DamagedError: The file is missing or has changed since it was written.
        """
        path, problem = self._folder / name, self.problem_of(name)
        if problem:
            raise DamagedError(f"{path} {problem}{advice and '. '}{advice}")
        return path

    def _write(self, checksums: dict[str, str]) -> None:
        with replacing(self._folder / MANIFEST) as path:
            path.write_text(json.dumps(checksums, indent=1, sort_keys=True) + "\n")
            _sha256(path)


def _sha256(path: pathlib.Path) -> str:
    """Return the SHA-256 of a file that is on the disk."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
        return hashlib.file_digest(stream, "sha256").hexdigest()
