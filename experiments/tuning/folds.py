"""The runs of one trial: one on each fold of the training classes, later the test classes."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
import subprocess
from collections.abc import Callable, Sequence

import numpy as np

from experiments.embedding.checked_json import checked_text, read_checked
from experiments.options import (
    RunError,
    RunOptions,
    UsageError,
    command_line_only_words,
    parse,
    resolved,
)
from experiments.options.child import child_command, child_environment
from experiments.training.run_files import (
    BEST,
    BEST_BEFORE,
    CHECKPOINT,
    CHECKPOINT_BEFORE,
    DIVERGED,
    read_finished,
)
from keras_dml._files.atomic import replacing

__all__ = ["FoldRuns", "Run"]

# Recipe, folder, further flags: trains what is not trained yet.
Run = Callable[[pathlib.Path, pathlib.Path, Sequence[str]], None]
SCORES = {"R@1": "recall@1/cosine", "MAP@R": "map@r/cosine"}
_OBJECTIVE = SCORES["MAP@R"]
# What takes room, and only the best trial's is needed.
_LARGE = (BEST, BEST_BEFORE, CHECKPOINT, CHECKPOINT_BEFORE, "last.keras", "test_embeddings.npz")
_SAVED_MODEL, _TEST = "saved_model", "test"


@dataclasses.dataclass(frozen=True)
class FoldRuns:
    """How the settings of one recipe are tried.

    Attributes:
        recipe: its flag file.
        folder: of all its trials.
        forwarded: flags of every run, the seed among them.
        folds: how many.
        run: trains.
    """

    recipe: pathlib.Path
    folder: pathlib.Path
    forwarded: tuple[str, ...]
    folds: int
    run: Run

    def of_trial(self, number: int) -> pathlib.Path:
        """A trial's folder."""
        return self.folder / f"trial-{number}"

    def train(self, number: int, words: Sequence[str]) -> list[float] | None:
        """MAP@R of each fold; None where a training broke.

        Args:
            number: of the trial.
            words: its values as flags.

        Raises:
            UsageError, RunError: as of a run; no fold's class has two images.
        """
        scores = []
        for fold in range(1, self.folds + 1):
            folder = self._of_fold(number, fold)
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
        """After which epoch each fold's kept model was, of a trial that is done."""
        folds = range(1, self.folds + 1)
        return [read_finished(self._of_fold(number, fold))[0]["best_epoch"] for fold in folds]

    def lighten(self, number: int) -> None:
        """Delete of a trial what only the best one is asked for: scores and reports stay."""
        for fold in range(1, self.folds + 1):
            folder = self._of_fold(number, fold)
            for name in _LARGE:
                (folder / name).unlink(missing_ok=True)
            shutil.rmtree(folder / _SAVED_MODEL, ignore_errors=True)

    def on_test_classes(self, number: int, words: Sequence[str]) -> dict[str, dict[str, float]]:
        """What a trial's models are worth on the test classes, for after the search.

        Args:
            number, words: as of `train`, which has been called.

        Returns:
            Score -> "separate", the mean over the models, and "concatenated", of their embeddings,
            each normalised, in a row.

        Raises:
            UsageError, RunError: as of an evaluation.
        """
        folder = self.of_trial(number)
        kept = read_checked(folder / "test.json")
        if kept is not None:
            return kept
        flags = folder / "test.flags"
        options = parse(RunOptions, ["study", f"--flagfile={self.recipe}", *self.forwarded, *words])
        with replacing(flags) as unfinished:
            unfinished.write_text(resolved(options))
        more = command_line_only_words(options)
        outputs = [
            _evaluated(self._of_fold(number, fold), [f"--flagfile={flags}", *more])
            for fold in range(1, self.folds + 1)
        ]
        together = _concatenated(outputs, flags)
        found: dict[str, dict[str, float]] = {}
        for name, key in SCORES.items():
            each = [json.loads((out / "evaluation.json").read_text())["scores"][key]
                    for out in outputs]  # fmt: skip
            if all(value is not None for value in each):
                found[name] = {
                    "separate": float(np.mean(each)),
                    "concatenated": float(together[key]),
                }
        with replacing(folder / "test.json") as unfinished:
            unfinished.write_text(checked_text(found))
        return found

    def _of_fold(self, number: int, fold: int) -> pathlib.Path:
        return self.of_trial(number) / f"fold-{fold}-of-{self.folds}"


def _evaluated(run: pathlib.Path, flags: Sequence[str]) -> pathlib.Path:
    """The folder with the scores of a fold's best model on the test classes."""
    output = run / _TEST
    if (output / "evaluation.json").is_file():
        return output
    words = [f"--model={run / BEST}", *flags, "--noclustering"]
    code = evaluate([*words, f"--output_dir={output}"])
    if code:
        raise RunError(f"the evaluation of {run} ended with code {code}; what it said is above")
    return output


def evaluate(words: Sequence[str]) -> int:
    """The exit code of `experiments.evaluate`."""
    # In a process of its own, as every run: it takes the devices.
    done = subprocess.run(
        child_command("experiments.evaluate", *words),
        env=child_environment(),
        stdout=subprocess.DEVNULL,
        check=False,
    )
    return done.returncode


def _concatenated(outputs: Sequence[pathlib.Path], flags: pathlib.Path) -> dict[str, float]:
    """Scores of the embeddings in a row, each normalised."""
    from experiments.options.data import data
    from keras_dml import metrics
    from keras_dml._common.rows import normalized

    def in_a_row(name: str) -> np.ndarray:
        rows = [normalized(np.load(output / f"{name}.npy")) for output in outputs]
        return np.concatenate(rows, axis=1)

    tested, _ = data(parse(RunOptions, ["study", f"--flagfile={flags}"]))
    searched = None if tested.gallery is None else in_a_row("evaluation_gallery")
    return dict(
        metrics.evaluate(
            in_a_row("evaluation"),
            tested.test.labels,
            [1],
            clustering=False,
            gallery=searched,
            gallery_labels=None if tested.gallery is None else tested.gallery.labels,
        )
    )
