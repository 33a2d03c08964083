"""The files of a run's folder, and their checked reading."""

from __future__ import annotations

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
from keras_dml._files.json_files import parsed_json
from keras_dml._files.json_files import read_json as read_json_file
from keras_dml._files.manifest import DamagedError, Manifest

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

_LOGGER = logging.getLogger("experiments")


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


def checked_json(path: pathlib.Path, form: Any, advice: str) -> Any:
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
        raise DamagedError(f"{error}. {advice}") from error


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


def embeddings_of_run(path: pathlib.Path) -> pathlib.Path:
    """Return the path of the test embeddings of a finished run.

    Raises:
        DamagedError: The file is missing or has changed since the run wrote it.
    """
    advice = f"Put it back, or delete {path} and repeat the run"
    return Manifest(path).check(EMBEDDINGS, advice, earlier=True)


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
