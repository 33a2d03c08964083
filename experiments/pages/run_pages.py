"""The pages of a run: its report and its model card."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import pathlib
import platform
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

import keras_dml
from experiments.evaluation.result import FLAGS_FILE, REPORT, Result
from experiments.options import RunOptions, command_line_only_words
from experiments.pages.model_card import (
    MODEL_CARD,
    fenced,
    model_card,
    update_final_model,
    write_card,
)
from experiments.pages.page import add_link
from experiments.pages.report import write_report

# Packages that the numbers depend on, if they are installed.
_PACKAGES = ("keras", "tensorflow", "jax", "torch", "numpy")


def write_run_pages(run: Any, result: Result) -> None:
    """Write the pages into the folder of a run.

    Args:
        run: The run, `experiments.training.plan.RunPlan`.
        result: Its result.
    """
    folder, options = run.folder.path, run.options
    links = {}
    if options.measured_in is not None:
        links[pathlib.Path(options.measured_in) / REPORT] = "The run that measured"
    command = made_by(folder / FLAGS_FILE, command_line_only_words(options))
    write_report(folder / REPORT, dataclasses.replace(result, reproduce=command), links)
    if result.images is None:
        return
    size, dimensions = options.image_size, result.images.queries.embeddings.shape[1]
    use = {
        "File": "`saved_model`, for TensorFlow",
        "Takes": f"the bytes of image files (`serving_default`), or decoded images float32 [n, "
        f"{size}, {size}, 3] (`embed_images`)",
        "Gives": f"`embeddings`, float32 [n, {dimensions}]; compare by cosine similarity",
    }
    # The table ends with the note, which has names of classes.
    of = "With their origin:" if result.note else "Of the test images:"
    scores = f"{of}\n\n{fenced(result.table)}"
    card = model_card(run.options.name, use, options, run.data, run.preprocessing, scores)
    write_card(folder / MODEL_CARD, card)


def link_final_model(options: RunOptions, refit: pathlib.Path) -> None:
    """Let the report and the model card of a run point to its final model.

    Args:
        options: The options of the run.
        refit: Folder of the run that trained the final model on every class.
    """
    update_final_model(options.folder / MODEL_CARD, f"{refit.name}/saved_model")
    add_link(options.folder / REPORT, refit / REPORT, "The final model, of every class")


def made_by(flags: pathlib.Path, more: Sequence[str] = ()) -> str:
    """Return the command and the versions, two lines.

    Args:
        flags: File of the run's resolved flags.
        more: Flags that a flag file cannot set.
    """
    words = [f"--flagfile={flags}", *more, "--output_dir=AGAIN"]
    command = f"python -m experiments.run {shlex.join(words)}"
    return f"{command}\n{', '.join([_ours(), f'Python {platform.python_version()}', *_others()])}"


def _others() -> list[str]:
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _ours() -> str:
    version = f"keras_dml {keras_dml.__version__}"
    root = pathlib.Path(keras_dml.__file__).resolve().parents[1]
    git = shutil.which("git")
    # An installed package may be inside another repository.
    if git is None or not (root / ".git").exists():
        return version
    commit, changed = (
        subprocess.run([git, "-C", root, *words], capture_output=True, text=True, check=False)
        for words in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "-uno"))
    )
    if commit.returncode:
        return version
    dirty = " with local changes" if changed.stdout.strip() else ""
    return f"{version}, commit {commit.stdout.strip()}{dirty}"
