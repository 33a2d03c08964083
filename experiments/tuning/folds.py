"""The runs of a trial: one for each fold of the training classes, and their evaluation."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Callable, Sequence

import numpy as np

from experiments.evaluation.checked_json import checked_text, read_checked
from experiments.evaluation.scores import compared, label_of
from experiments.options import (
    RunError,
    RunOptions,
    UsageError,
    command_line_only_words,
    parse,
    resolved,
)
from experiments.options.child import run_module
from experiments.training.run_files import (
    BEST,
    CHECKPOINT,
    DIVERGED,
    read_finished,
)
from keras_dml._files.atomic import replacing

__all__ = ["FoldRuns", "Run"]

# Trains a recipe in a folder with further flags, if it is not trained yet.
Run = Callable[[pathlib.Path, pathlib.Path, Sequence[str]], None]
_OBJECTIVE = "map@r/cosine"
# Large files, which only the best trial needs.
_LARGE = (BEST, CHECKPOINT, "last.keras", "test_embeddings.npz")


@dataclasses.dataclass(frozen=True)
class FoldRuns:
    """The runs of a recipe's trials.

    Attributes:
        recipe: Flag file of the recipe.
        folder: Folder of all trials.
        forwarded: Flags of every run, with the seed.
        folds: Number of folds.
        run: Trains a run.
    """

    recipe: pathlib.Path
    folder: pathlib.Path
    forwarded: tuple[str, ...]
    folds: int
    run: Run

    def train(self, number: int, words: Sequence[str]) -> list[float] | None:
        """Train a trial on each fold and return the values of MAP@R. None if a training diverged.

        Args:
            number: Number of the trial.
            words: Values of the trial as flags.

        Raises:
            UsageError, RunError: As a run. Also if no class of a fold has two images.
        """
        scores = []
        for fold, folder in enumerate(self._folders(number), start=1):
            (folder / DIVERGED).unlink(missing_ok=True)
            try:
                self.run(
                    self.recipe, folder, [*self.forwarded, *words, f"--fold={fold}/{self.folds}"]
                )
            except RunError:
                if (folder / DIVERGED).is_file():
                    return None
                raise
            score = read_finished(folder)[0]["scores"].get(_OBJECTIVE)
            if score is None:
                raise UsageError(
                    f"folds must have classes of two images or more, which fold {fold} of "
                    f"{self.recipe.stem} has not. Received: folds={self.folds}"
                )
            scores.append(score)
        return scores

    def best_epochs(self, number: int) -> list[int]:
        """Return the epoch of each fold's kept model."""
        return [read_finished(folder)[0]["best_epoch"] for folder in self._folders(number)]

    def lighten(self, number: int) -> None:
        """Delete the models of a trial. Its scores and reports stay."""
        for folder in self._folders(number):
            for name in _LARGE:
                (folder / name).unlink(missing_ok=True)
            shutil.rmtree(folder / "saved_model", ignore_errors=True)

    def on_test_classes(self, number: int, words: Sequence[str]) -> dict[str, dict[str, float]]:
        """Evaluate a trial's models on the test classes.

        Args:
            number, words: As in `train`, which must have been called.

        Returns:
            For each score, "separate", the mean over the models, and "concatenated", the score of
            their concatenated normalized embeddings.

        Raises:
            UsageError, RunError: As an evaluation.
        """
        folder = self.folder / f"trial-{number}"
        kept = read_checked(folder / "test.json")
        if kept is not None:
            return kept
        flags = folder / "test.flags"
        options = parse(RunOptions, ["study", f"--flagfile={self.recipe}", *self.forwarded, *words])
        with replacing(flags) as unfinished:
            unfinished.write_text(resolved(options))
        given = [f"--flagfile={flags}", *command_line_only_words(options)]
        outputs = [_evaluated(run, given) for run in self._folders(number)]
        together = _concatenated(outputs, flags)
        found: dict[str, dict[str, float]] = {}
        for score in compared():
            if not score.of_distance:
                continue
            name, key = label_of(score.at_1), score.key
            each = [
                json.loads((output / "evaluation.json").read_text())["scores"][key]
                for output in outputs
            ]
            if all(value is not None for value in each):
                found[name] = {
                    "separate": float(np.mean(each)),
                    "concatenated": float(together[key]),
                }
        with replacing(folder / "test.json") as unfinished:
            unfinished.write_text(checked_text(found))
        return found

    def _folders(self, number: int) -> list[pathlib.Path]:
        trial = self.folder / f"trial-{number}"
        return [trial / f"fold-{fold}-of-{self.folds}" for fold in range(1, self.folds + 1)]


def _evaluated(run: pathlib.Path, flags: Sequence[str]) -> pathlib.Path:
    """Evaluate a fold's model on the test classes, and return the folder of the results."""
    output = run / "test"
    if (output / "evaluation.json").is_file():
        return output
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
    return dict(
        metrics.evaluate(
            concatenated("evaluation"),
            tested.test.labels,
            [1],
            clustering=False,
            gallery=None if tested.gallery is None else concatenated("evaluation_gallery"),
            gallery_labels=None if tested.gallery is None else tested.gallery.labels,
        )
    )
