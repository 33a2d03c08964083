"""The models of a trial's folds, on the test classes."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence

import numpy as np

from experiments.evaluation.scores import compared, label_of
from experiments.options import RunOptions, command_line_only_words, parse, resolved
from experiments.options.child import run_module
from experiments.training.run_files import BEST
from keras_dml._files.atomic import replacing

Scores = dict[str, dict[str, float]]
"""For each score, "separate", the mean over the models, and "concatenated", the score of their
concatenated normalized embeddings."""


def scores_on_test_classes(
    folder: pathlib.Path, runs: Sequence[pathlib.Path], words: Sequence[str]
) -> Scores:
    """Evaluate a trial's models on the test classes.

    Args:
        folder: Folder of the trial.
        runs: Folders of its runs.
        words: Flags of its runs.

    Raises:
        UsageError, RunError: As an evaluation.
    """
    flags = folder / "test.flags"
    options = parse(RunOptions, ["study", *words])
    with replacing(flags) as unfinished:
        unfinished.write_text(resolved(options))
    given = [f"--flagfile={flags}", *command_line_only_words(options)]
    outputs = [_evaluated(run, given) for run in runs]
    of_models = [
        json.loads((output / "evaluation.json").read_text())["scores"] for output in outputs
    ]
    together = _concatenated(outputs, flags)
    found: Scores = {}
    for score in compared():
        each = [scores[score.key] for scores in of_models if score.of_distance]
        if each and None not in each:
            found[label_of(score.at_1)] = {
                "separate": float(np.mean(each)),
                "concatenated": float(together[score.key]),
            }
    return found


def _evaluated(run: pathlib.Path, flags: Sequence[str]) -> pathlib.Path:
    """Evaluate a fold's model on the test classes, and return the folder of the results."""
    output = run / "test"
    if not (output / "evaluation.json").is_file():
        words = [f"--model={run / BEST}", *flags, "--noclustering", f"--output_dir={output}"]
        # An evaluation uses the devices of its process.
        run_module("experiments.evaluate", *words, name=f"the evaluation of {run}")
    return output


def _concatenated(outputs: Sequence[pathlib.Path], flags: pathlib.Path) -> dict[str, float]:
    """Compute the scores of the concatenated normalized embeddings."""
    from experiments.options.data import data
    from keras_dml import metrics
    from keras_dml._common.rows import normalized

    def concatenated(name: str) -> np.ndarray:
        rows = [normalized(np.load(output / f"{name}.npy")) for output in outputs]
        return np.concatenate(rows, axis=1)

    tested, _ = data(parse(RunOptions, ["study", f"--flagfile={flags}"]))
    gallery = tested.gallery
    return dict(
        metrics.evaluate(
            concatenated("evaluation"),
            tested.test.labels,
            [1],
            clustering=False,
            gallery=None if gallery is None else concatenated("evaluation_gallery"),
            gallery_labels=None if gallery is None else gallery.labels,
        )
    )
