"""A final model: retrain a finished run on all classes."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

from experiments.evaluation.evaluators import accuracy_line
from experiments.evaluation.result import measurements_of
from experiments.evaluation.score_table import score_lines, score_of
from experiments.options import RunOptions, UsageError, given_for_run
from experiments.options.child_process import run_module
from experiments.options.visible import visible
from experiments.training.run_files import read_finished, read_result
from experiments.training.run_images import options_of_run
from experiments.training.selection import epochs_of_all_classes, kept, kept_in_words
from pipelines.datasets.registry import takes_split

FOLDER = "refit"
"""Folder of the second run in the run's folder."""

_EVERY_CLASS = "every_class"
# Flags that differ in the second run.
_OTHERWISE = (
    "train_classes",
    "test_classes",
    "class_split",
    "split_seed",
    "fold",
    "epochs",
    "patience",
    "batch_size",
    "steps_per_epoch",
    "eval_every",
    "keep",
    "raw_pixels",
    "refit",
    "measured_in",
)


def origin_of(result: Mapping[str, Any]) -> str:
    """Return the origin of the scores of the first run, in words."""
    trained, tested = result.get("trained_on"), result.get("tested_on")
    sides = f" It trained on {trained}, and was tested on {tested}." if tested else ""
    return (
        f"The scores belong to the model before.{sides} This model trained on every class, "
        "with the same settings and steps, and was not measured itself."
    )


def check_refit(options: RunOptions) -> None:
    """Raise `UsageError` if the dataset does not support `--refit`, or as `measured`."""
    measured(options)
    if options.refit and options.dataset is not None and not takes_split(options.dataset):
        raise UsageError(
            f"refit must be false for dataset={options.dataset}, but got true. The files of the "
            "dataset fix its split, and refit trains on all classes."
        )


def measured(options: RunOptions) -> dict[str, Any] | None:
    """Return the `result.json` of the run that `--measured_in` names. None without the flag.

    Raises:
        UsageError: The folder has no finished run.
    """
    if options.measured_in is None:
        return None
    run = pathlib.Path(options.measured_in)
    result = read_result(run)
    if result is None:
        raise UsageError(
            f"measured_in must be the folder of a finished run, but got {options.measured_in}."
        )
    return result


def lines_of_measured(options: RunOptions, result: Mapping[str, Any]) -> list[str]:
    """Return the lines below the table of the run that `--measured_in` names.

    The certificates of approximate scores and the widest classes are only in that run's report.

    Args:
        options: The options of the second run.
        result: The `result.json` of the first run.
    """
    run = pathlib.Path(str(options.measured_in))
    first, (_, log) = options_of_run(run), read_finished(run)
    best, accuracy = kept(log, first), result.get("accuracy")
    shown = [
        each
        for each in measurements_of(result)
        if options.information or not score_of(each).of_information
    ]
    return [
        *(f"{label}: {text}" for label, text in score_lines(shown)),
        *([] if accuracy is None else [accuracy_line(accuracy)]),
        f"kept from epoch {best['epoch']:g}, {kept_in_words(best, first)}",
        *map(visible, result.get("conclusions") or []),
    ]


def refit(options: RunOptions) -> pathlib.Path:
    """Train again on every class in another process, and return the folder of that run.

    After a stop it resumes like every run.

    Args:
        options: The options of the finished run.

    Raises:
        UsageError, RunError: As the second run.
    """
    folder = options.folder / FOLDER
    result, log = read_finished(options.folder)
    steps = round(log[-1]["step"] / log[-1]["epoch"])
    # With patience: as long as the training of the kept model.
    patient = options.patience > 0
    epochs = options.epochs
    if patient:
        epochs = epochs_of_all_classes([result.get("best_epoch") or epochs], options.head_epochs)
    words = [
        *given_for_run(options, _OTHERWISE),
        f"--class_split={_EVERY_CLASS}",
        f"--batch_size={result.get('batch_size') or options.batch_size}",
        f"--steps_per_epoch={steps}",
        f"--epochs={epochs}",
        f"--eval_every={epochs}",
        f"--output_dir={folder}",
        f"--measured_in={os.fspath(options.folder)}",
    ]
    print(
        f"\nagain on every class, with {'its best' if patient else 'the same'} {epochs} epochs of "
        f"{steps} steps: {folder}",
        flush=True,
    )
    # A run sets the seed, the precision, and the devices of its process.
    run_module("experiments.run", *words, name="the run on every class", quiet=False)
    return folder
