"""A run of a few seconds, and its outputs."""

import json

import numpy as np

from experiments import run
from experiments.options.command_line import run_command

TINY = [
    "--dataset=folder",
    "--image_size=16",
    "--crop=fixed",
    "--backbone=small_convnet",
    "--weights=none",
    "--embedding_size=8",
    "--sampler=balanced",
    "--batch_size=8",
    "--images_per_class=2",
    "--optimizer=adam",
    "--learning_rate=0.001",
    "--epochs=2",
    "--recall_at=1,2",
]


def final_weights(folder):
    with np.load(folder / "checkpoint.npz") as saved:
        return {name: saved[name] for name in saved.files if name.startswith("variable_")}


def history(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "train/seconds"} for row in rows]


def command(*arguments):
    """Run experiments.run and return its exit code."""
    return run_command(run.main, ["run", *map(str, arguments)])


def finished_run(folder, photos, *more):
    """Run for a few seconds on these photos and return the run's folder."""
    assert command(*TINY, f"--data_dir={photos}", f"--output_dir={folder}", *more) == 0
    return folder
