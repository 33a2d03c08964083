"""The files of a run's folder: their checksums, their replacement, and their checked reading."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pathlib
import types
from collections.abc import Iterable, Mapping
from typing import Any

from experiments.evaluation.result import FLAGS_FILE as FLAGS_FILE
from experiments.options.errors import UsageError
from keras_dml._common.errors import ArgumentError
from keras_dml._common.regular_files import MOST_TEXT, read_regular
from keras_dml._files.atomic import replacing
from keras_dml._files.json_files import parsed_json
from keras_dml._files.json_files import read_json as read_json_file

LOG = "metrics.jsonl"
CHECKPOINT = "checkpoint.npz"
BEST = "best.keras"
LAST = "last.keras"
SERVED = "saved_model"
QUERY, CANDIDATE = "", "candidate_"
"""First parts of the names of an encoder's files: of the only one or the queries', and of the
candidates'."""
BAD_IMAGES = "bad_images.txt"
IMAGES = "images.json"
RESULT = "result.json"
EMBEDDINGS = "test_embeddings.npz"
DIVERGED = "diverged.txt"
"""The reason why a training diverged."""
TENSORBOARD = "tensorboard"
"""Folder of the curves."""

_ROWS = dict[str, dict[str, float | None]]
# Types of the values that commands read. A missing field equals null.
_SIDE = {"images": int, "sha256": str | None, "classes": (dict[str, list[str]], None)}
_IMAGES = types.GenericAlias(dict, (str, _SIDE))
_RESULT = {
    "table": str | None,
    "rows": (_ROWS, None),
    "scores": dict[str, float | None] | None,
    "baselines": dict[str, _ROWS] | None,
    "accuracy": float | None,
    "conclusions": (list[str], None),
    "batch_size": int | None,
    "best_epoch": int | None,
    "train_seconds": float | None,
    "seconds": float | None,
    "measured": str | None,
    "trained_on": str | None,
    "tested_on": str | None,
}
_WRITTEN_AGAIN = "Delete it, and the command of the run writes it again"
_COMPARED = {"rows": _ROWS, "best_epoch": int, "train_seconds": float, "seconds": float}

MANIFEST = "manifest.json"
_STAGED = ".new-"
_LOGGER = logging.getLogger("experiments")


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
            found: dict[str, str] = checked_json(path, dict[str, str])
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except DamagedError as error:
            raise DamagedError(
                f"{error}. Delete the folder, and the same command begins again"
            ) from error
        return found

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
            # A pipe would block.
            if path.is_file() and checksums.get(name) == _sha256(path):
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


def flag_file_of(run: pathlib.Path) -> pathlib.Path:
    """Return the flag file of a run.

    Raises:
        UsageError: The folder does not belong to a run.
    """
    flags = run / FLAGS_FILE
    if not flags.is_file():
        raise UsageError(
            f"run must be the folder of a run, with {FLAGS_FILE} in it, but got {run}."
        )
    return flags


def has_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Return whether the run in a folder has a checkpoint."""
    return (pathlib.Path(path) / CHECKPOINT).is_file()


def checked_json(path: pathlib.Path, form: Any, advice: str = "") -> Any:
    """Read a JSON file of a run, which another program can have written with a right checksum.

    Args:
        path: The file.
        form: The types of its values.
        advice: What the user can do if the file has another form.

    Raises:
        DamagedError: The file has another form, see `keras_dml._files.json_files`.
    """
    try:
        return read_json_file(path, form)
    except ArgumentError as error:
        raise DamagedError(f"{error}{advice and '. '}{advice}") from error


def read_json(
    path: pathlib.Path, name: str, form: Any = dict[str, Any], advice: str = _WRITTEN_AGAIN
) -> Any:
    """Return the value of a JSON file in a run's folder. None if it is missing or damaged.

    Args:
        path: The folder.
        name: Name of the file.
        form: The types of its values.
        advice: As for `checked_json`.

    Raises:
        DamagedError: The file has the right checksum and another form.
    """
    if Manifest(path).problem_of(name):
        return None
    return checked_json(path / name, form, advice)


def read_result(path: pathlib.Path) -> dict[str, Any] | None:
    """Return the result of the run in a folder. None if it is missing or damaged.

    Raises:
        DamagedError: As `read_json`.
    """
    found: dict[str, Any] | None = read_json(path, RESULT, _RESULT)
    return found


def read_log(path: pathlib.Path, advice: str) -> list[dict[str, float]]:
    """Return the objects of a log, `metrics.jsonl`.

    Args:
        path: The file.
        advice: What the user can do if the file is damaged.

    Raises:
        DamagedError: A line is not an object of numbers with an epoch and a step.
    """
    try:
        text = read_regular(path, MOST_TEXT).decode()
        rows = [
            parsed_json(line, dict[str, float], f"line {number} of {path}")
            for number, line in enumerate(text.splitlines(), start=1)
        ]
        for number, row in enumerate(rows, start=1):
            if not (row.get("epoch", 0) > 0 and row.get("step", 0) > 0):
                raise ArgumentError(f"line {number} of {path} is damaged: it has no epoch or step")
    except ValueError as error:
        raise DamagedError(f"{error}. {advice}") from error
    return rows


def kept_images(path: pathlib.Path) -> dict[str, Any] | None:
    """Return the images of the run in a folder, from `run_images.record_of`.

    Raises:
        DamagedError: The run has begun, and its list of images is damaged.
    """
    advice = f"Put it back, or delete {path} to begin again"
    if has_checkpoint(path) and IMAGES in Manifest(path).checksums():
        Manifest(path).check(IMAGES, advice)
    found: dict[str, Any] | None = read_json(path, IMAGES, _IMAGES, advice)
    return found


def measured_on_others(
    runs: Mapping[str, pathlib.Path], trained: bool = False
) -> tuple[str, list[str]]:
    """Return the names of the first run and of the runs that were evaluated on other images.

    Runs without a list of images are left out: runs of an earlier version, and runs whose list is
    lost, because their scores do not depend on it.

    Args:
        runs: Folders of the runs by name.
        trained: Compare the images of the training instead.
    """
    kept = {name: _images_if_whole(path) for name, path in runs.items()}
    images = {
        name: {side: found[side] for side in found if side.startswith("training") is trained}
        for name, found in kept.items()
        if found is not None
    }
    first = next(iter(images), "")
    return first, [name for name in images if images[name] != images[first]]


def _images_if_whole(path: pathlib.Path) -> dict[str, Any] | None:
    try:
        return kept_images(path)
    except DamagedError:
        return None


def note_lost_images(runs: Iterable[pathlib.Path]) -> None:
    """Warn about runs whose list of images is lost or damaged."""
    for path in runs:
        try:
            kept_images(path)
        except DamagedError as error:
            _LOGGER.warning("the images of %s are not compared with other runs: %s", path, error)


def note_other_images(runs: Mapping[str, pathlib.Path]) -> None:
    """Warn about the runs of `note_lost_images` and `measured_on_others`."""
    note_lost_images(runs.values())
    for done, trained in (("measured", False), ("trained", True)):
        first, others = measured_on_others(runs, trained)
        if others:
            _LOGGER.warning(
                "not %s on the same images as %s: %s. If the images changed between the runs, "
                "delete the folders of these runs and repeat the command",
                done,
                first,
                "; ".join(others),
            )


def read_finished(
    path: pathlib.Path, whole: bool = False
) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """Return the result and the log of a finished run.

    Args:
        path: Folder of the run.
        whole: Whether the result must have the values that a comparison of runs needs.

    Raises:
        DamagedError: A file is missing or damaged.
    """
    manifest, advice = Manifest(path), f"Put it back, or delete {path} and repeat the run"
    result: dict[str, Any] = checked_json(
        manifest.check(RESULT, advice), {**_RESULT, **_COMPARED} if whole else _RESULT, advice
    )
    log = read_log(manifest.check(LOG, advice), advice)
    if not log:
        raise DamagedError(f"{path / LOG} is damaged: it is empty. {advice}")
    return result, log


def kept_candidate_model(path: pathlib.Path) -> pathlib.Path | None:
    """Return the path of the kept model of the candidates. None for a run with one encoder.

    Raises:
        DamagedError: The file is missing or has changed since the run wrote it.
    """
    name = f"{CANDIDATE}{BEST}"
    return Manifest(path).check(name) if name in Manifest(path).checksums() else None


def kept_model(path: pathlib.Path) -> pathlib.Path:
    """Return the path of the kept model in the folder of a run, which embeds the queries.

    Raises:
        UsageError: The run has no model, because it stopped before its first evaluation.
        DamagedError: The file has changed since the run wrote it.
    """
    best = path / BEST
    if not best.is_file():
        raise UsageError(
            f"run must be the folder of a run with its kept model, but {best} is missing. The "
            f"command that began the run resumes it: keras-dml run "
            f"--flagfile={path / FLAGS_FILE} --output_dir={path}"
        )
    Manifest(path).check(BEST, f"To evaluate it all the same: --model={best}")
    return best
