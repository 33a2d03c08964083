"""The files of a run's folder: what they are called, and how each is checked before it is used."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any

from experiments.evaluation.baselines import RAW_PIXELS_FILE as RAW_PIXELS
from experiments.evaluation.baselines import UNTRAINED_FILE as UNTRAINED
from experiments.evaluation.checked_json import checked, read_checked
from experiments.evaluation.fingerprint import file_sha256
from experiments.evaluation.result import FLAGS_FILE
from experiments.evaluation.scores import RECALL_AT_1
from experiments.options import RunOptions, UsageError, parse
from experiments.training.checkpoint import DamagedError, Records, State, read_checkpoint

LOG = "metrics.jsonl"
CHECKPOINT = "checkpoint.npz"
# The one of the epoch before, and the best model of that time where it was another.
CHECKPOINT_BEFORE = "checkpoint-before.npz"
BEST = "best.keras"
BEST_BEFORE = ".best-before.keras"
BAD_IMAGES = "bad_images.txt"
# Which images it was made of.
IMAGES = "images.json"
RANKMI = "rankmi.json"
RESULT = "result.json"
# What is said of a training whose numbers broke.
DIVERGED = "diverged.txt"
# A folder: the curves, and the projector's files.
TENSORBOARD = "tensorboard"
# What is kept for the rest of a run before its first checkpoint, and follows from its flags.
OF_THE_FLAGS = (BAD_IMAGES, IMAGES, RAW_PIXELS, UNTRAINED, RANKMI)

_LOGGER = logging.getLogger("experiments")


def flag_file_of(run: pathlib.Path) -> pathlib.Path:
    """The flag file of a run that somebody names.

    Raises:
        UsageError: the folder is no run's.
    """
    flags = run / FLAGS_FILE
    if not flags.is_file():
        raise UsageError(
            f"run must be the folder of a run, with {FLAGS_FILE} in it. Received: run={run}"
        )
    return flags


def has_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Whether the run in a folder has something to go on from."""
    return any((pathlib.Path(path) / name).is_file() for name in (CHECKPOINT, CHECKPOINT_BEFORE))


def last_records(path: pathlib.Path) -> Records | None:
    """Of the last whole checkpoint in a folder."""
    for name in (CHECKPOINT, CHECKPOINT_BEFORE):
        if (path / name).is_file():
            try:
                return read_checkpoint(path / name, variables=False).records
            except DamagedError:
                continue
    return None


def known_bad_images(path: str | os.PathLike[str]) -> list[str] | None:
    """The lines of the images that the run in a folder left out at its start.

    None where there is no run that has begun, or none that leaves images out.
    """
    folder = pathlib.Path(path)
    records = last_records(folder)
    if records is not None:
        text = records.files.get(BAD_IMAGES)
        return None if text is None else _lines(text)
    listed = folder / BAD_IMAGES
    if not listed.is_file() or not has_checkpoint(folder):
        return None
    return _lines(listed.read_bytes().decode())


def _lines(text: str) -> list[str]:
    """Those that a line feed ends: `splitlines` would cut names at a dozen other characters."""
    return [line for line in text.split("\n") if line]


def kept_images(path: pathlib.Path) -> dict[str, Any] | None:
    """Which images the run in a folder was made of, as from `made_of.record_of`.

    None of an earlier version's. A damaged file has a copy in the checkpoint.
    """
    found = read_checked(path / IMAGES)
    if found is None and (records := last_records(path)) is not None:
        found = checked(records.files.get(IMAGES, ""))
    return found


def note_other_images(runs: Mapping[str, pathlib.Path]) -> None:
    """Say which of several runs were measured on other images than the first of them.

    Args:
        runs: name -> folder, as far as they are known.
    """
    kept = {name: kept_images(path) for name, path in runs.items()}
    measured = {
        name: {side: images for side, images in found.items() if side != "training"}
        for name, found in kept.items()
        if found is not None
    }
    first = next(iter(measured), "")
    others = [name for name, images in measured.items() if images != measured[first]]
    if others:
        _LOGGER.warning(
            "not measured on the same images as %s, so that the scores do not compare: %s",
            first,
            "; ".join(others),
        )


def read_finished(path: pathlib.Path) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """Result and log of a finished run's folder.

    Raises:
        DamagedError: one of them is no longer what was written.
    """
    log = path / LOG
    result = read_checked(path / RESULT)
    if result is None:
        raise DamagedError(f"{path / RESULT} is damaged or missing")
    expected = result.get("files", {}).get(LOG)
    if not is_readable(log) or expected not in (None, file_sha256(log)):
        raise DamagedError(
            f"{log} is damaged or missing: delete {path / RESULT}, and the same command writes "
            "both anew from the checkpoint"
        )
    return result, [json.loads(line) for line in log.read_text().splitlines()]


def kept_model(path: pathlib.Path) -> pathlib.Path:
    """`best.keras` in the folder of a run, finished or not.

    Raises:
        DamagedError: it is no longer what the run wrote.
    """
    best, result = path / BEST, read_checked(path / RESULT)
    records = last_records(path) if result is None else None
    expected = records.best if records else (result or {}).get("files", {}).get(BEST)
    if expected is not None and best.is_file() and file_sha256(best) != expected:
        raise DamagedError(
            f"{best} is no longer what the run wrote (its SHA-256 is another one). To evaluate it "
            f"all the same: --model={best}"
        )
    return best


def log_of_an_earlier_version(
    path: pathlib.Path, flags: str, state: State
) -> list[dict[str, float]]:
    """The log up to a checkpoint that has no copy of it: one of version 0.1.0.

    Raises:
        DamagedError: it does not have the evaluations that it should.
    """
    options = parse(RunOptions, ["run", *flags.splitlines()])
    expected = [
        {"epoch": epoch, "step": epoch * (state.step // state.epoch)}
        for epoch in range(1, state.epoch + 1)
        if epoch % options.eval_every == 0 or epoch == options.epochs
    ]
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines()] if expected else []
        rows = [row for row in rows if row["step"] <= state.step]
        found = [{name: row[name] for name in ("epoch", "step")} for row in rows]
        whole = found == expected and all(
            row.keys() == rows[0].keys() and isinstance(row[RECALL_AT_1], float) for row in rows
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise DamagedError(f"{path} is damaged, and the checkpoint, of 0.1.0, has no copy")
    return rows


def is_readable(path: pathlib.Path) -> bool:
    """Whether a log or a result is JSON, and has its own checksum where it has one."""
    if path.name == RESULT:
        return read_checked(path) is not None
    try:
        return all(isinstance(json.loads(line), dict) for line in path.read_text().splitlines())
    except PermissionError:
        raise
    except (OSError, ValueError, RecursionError):
        return False


def is_whole_archive(path: pathlib.Path) -> bool:
    """Whether a `.keras` file has its own checksums right, those of every zip archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except Exception:  # of a damaged file zipfile raises anything
        return False


def log_text(history: Iterable[Mapping[str, float]]) -> str:
    """The objects of a log as its file has them."""
    return "".join(json.dumps(row) + "\n" for row in history)
