"""The search of one recipe over folds, and the runs with its best settings.

Protocol: Musgrave et al. 2020, "A Metric Learning Reality Check".
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import pathlib
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import tensorflow as tf

from experiments.evaluation.result import EVALUATION, measurements_of
from experiments.evaluation.scores import SCORES, compared
from experiments.options import (
    RunError,
    RunOptions,
    UsageError,
    check_together,
    command_line_only_words,
    data,
    parse,
    resolved,
)
from experiments.options.child_process import run_module
from experiments.options.held_folder import waiting_for
from experiments.training.objectives import objective_of
from experiments.training.optimizer import optimizer
from experiments.training.run_files import (
    BEST,
    CHECKPOINT,
    DIVERGED,
    EMBEDDINGS,
    read_finished,
)
from experiments.training.run_images import record_of
from experiments.training.selection import check_selection, epochs_of_all_classes
from experiments.tuning.space import Parameter, Trial, Value, own_values, words_of_trial
from keras_dml import losses, metrics
from keras_dml._common.errors import ArgumentError
from keras_dml._common.regular_files import check_regular
from keras_dml._common.rows import normalized
from keras_dml._files.atomic import replacing
from keras_dml._files.json_files import read_json
from keras_dml._files.manifest import Manifest
from pipelines.split import Split

if TYPE_CHECKING:
    from experiments.tuning.search import Search

# Trains a recipe in a folder with further flags, if it is not trained yet.
Run = Callable[[pathlib.Path, pathlib.Path, Sequence[str]], None]
Scores = dict[str, dict[str, float]]
"""For each score, "separate", the mean over the models, and "concatenated", the score of their
concatenated normalized embeddings."""
_EVALUATION = {"scores": dict[str, float | None]}
# Large files, which only the best trial needs.
_LARGE = (BEST, CHECKPOINT, "last.keras", EMBEDDINGS)


@dataclasses.dataclass
class RecipeSearch:
    """The search of one recipe, and after `do` its result.

    Attributes:
        recipe: Flag file of the recipe.
        folder: Output folder of the recipe.
        forwarded: Flags of every run, without the seed.
        options: Options of a run, with the seed of the search.
        space: The hyperparameters.
        folds: Number of parts of the training classes.
        trials: Number of trials.
        storage: URL of the storage. None for a file in the folder.
        run: Trains a run.
        done: All trials.
        best: The best trial.
        scores: Values of MAP@R of the best trial's folds.
    """

    recipe: pathlib.Path
    folder: pathlib.Path
    forwarded: tuple[str, ...]
    options: RunOptions
    space: tuple[Parameter, ...]
    folds: int
    trials: int
    storage: str | None
    run: Run
    done: Sequence[Trial] = ()
    best: Trial = dataclasses.field(default_factory=lambda: Trial(0, {}))
    scores: Sequence[float] = ()

    def check(self) -> None:
        """Refuse a search that cannot end well, before anything is written.

        Raises:
            ArgumentError: There are fewer training classes than folds, or the loss or the optimizer
                refuses a bound.
            UsageError: The recipe has no test classes, or sets a fold.
        """
        tf.config.set_visible_devices([], "GPU")  # the runs use them
        options = self.options
        if options.fold is not None:
            raise UsageError(
                f"fold must be unset with --search, which sets it, but got {options.fold}."
            )
        if options.class_split == "every_class":
            raise UsageError(
                "class_split must keep classes for the test after a search, but got every_class."
            )
        on_fold = dataclasses.replace(options, fold=f"1/{self.folds}")
        check_together(on_fold)
        check_selection(on_fold)
        for parameter in self.space:
            for value in parameter.choices or (parameter.low, parameter.high):
                words = self._words({parameter.name: value})
                tried = parse(RunOptions, ["study", f"--flagfile={self.recipe}", *words])
                # The classes of these losses need the fitted model.
                if losses.LOSSES[options.loss].kind != "statistics_network":
                    objective_of(tried).loss()
                optimizer(tried, tried.learning_rate)
        self.one_fold()

    def _words(self, values: Mapping[str, Value]) -> list[str]:
        """Return the flags of a trial's runs after the recipe."""
        return [*self.forwarded, f"--seed={self.options.seed}", *words_of_trial(values)]

    def one_fold(self) -> Split:
        """Return the training classes, divided by the first fold."""
        return data.load(dataclasses.replace(self.options, fold=f"1/{self.folds}"))

    def open(self) -> Search:
        """Open the storage of the trials.

        Raises:
            UsageError, MissingExtraError: As `Search`.
        """
        from experiments.tuning.search import FLAGS, Search, study_flags  # imports Optuna

        images = record_of(self.one_fold())
        identity = {
            FLAGS: study_flags(resolved(self.options).splitlines()),
            "space": [f"--search={parameter.text}" for parameter in self.space],
            "folds": [f"--folds={self.folds}"],
            "images": [
                f"{side}: {found['images']} images, "
                f"{hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:8]}"
                for side, found in images.items()
            ],
        }
        return Search(
            self.folder,
            self.storage,
            self.recipe.stem,
            identity,
            self.space,
            self.options.seed,
            own_values(self.space, self.options),
        )

    def do(self, search: Search) -> None:
        """Run the trials that are missing, and set the result."""

        def score(trial: Trial) -> float:
            words = " ".join(words_of_trial(trial.values))
            print(f"[{self.recipe.stem}, trial {trial.number + 1}] {words}", flush=True)
            of_folds = self._train(trial)
            if of_folds is None:
                print("  the training broke", flush=True)
                return 0.0
            print(f"  MAP@R {percents(of_folds)}", flush=True)
            return float(np.mean(of_folds))

        search.do(self.trials, score)
        self.done, self.best = search.trials(), search.best()
        if not self.best.score:
            raise UsageError(
                f"search must have values with which {self.recipe.stem} trains, but got "
                f"{' '.join(parameter.text for parameter in self.space)}. Every training broke."
            )
        for trial in self.done:
            if trial.number != self.best.number:
                self._lighten(trial)
        with self._locked():
            # Trains again if the best trial's runs are on another machine.
            self.scores = self._train(self.best) or ()

    def _locked(self) -> contextlib.AbstractContextManager[object]:
        return waiting_for(self.folder / ".best.lock")

    def _train(self, trial: Trial) -> list[float] | None:
        """Train a trial on each fold and return the values of MAP@R. None if a training diverged.

        Raises:
            UsageError, RunError: As a run. Also if no class of a fold has two images.
        """
        scores = []
        for fold, folder in enumerate(self._runs_of(trial), start=1):
            (folder / DIVERGED).unlink(missing_ok=True)
            words = [*self._words(trial.values), f"--fold={fold}/{self.folds}"]
            try:
                self.run(self.recipe, folder, words)
            except RunError:
                if (folder / DIVERGED).is_file():
                    return None
                raise
            result, _ = read_finished(folder, whole=True)
            score = SCORES["map@r"].of(measurements_of(result))
            if score is None or math.isnan(score.value):
                raise UsageError(
                    "folds must leave a class of two images or more in each fold, but got "
                    f"{self.folds}. Fold {fold} of {self.recipe.stem} has no such class."
                )
            scores.append(score.value)
        return scores

    def _lighten(self, trial: Trial) -> None:
        """Delete the models of a trial. Its scores and reports stay."""
        for folder in self._runs_of(trial):
            for name in _LARGE:
                (folder / name).unlink(missing_ok=True)
            shutil.rmtree(folder / "saved_model", ignore_errors=True)

    def _trial_folder(self, trial: Trial) -> pathlib.Path:
        return self.folder / f"trial-{trial.number}"

    def _runs_of(self, trial: Trial) -> list[pathlib.Path]:
        folds = range(1, self.folds + 1)
        return [self._trial_folder(trial) / f"fold-{fold}-of-{self.folds}" for fold in folds]

    def best_epochs(self) -> list[int]:
        """Return the epochs of the best trial's kept models, fold by fold."""
        return [
            read_finished(folder, whole=True)[0]["best_epoch"]
            for folder in self._runs_of(self.best)
        ]

    def on_test_classes(self) -> Scores:
        """Evaluate the best trial's models on the test classes."""
        words = [f"--flagfile={self.recipe}", *self._words(self.best.values)]
        folder, runs = self._trial_folder(self.best), self._runs_of(self.best)
        with self._locked():
            return scores_on_test_classes(folder, runs, words)

    def final_words(self) -> list[str]:
        """Return the flags of a run with the best settings on all training classes.

        The run is evaluated only at its end, because choosing an epoch by the test classes would
        flatter the score. With patience, it is as long as the trainings of the folds' kept models.
        """
        words = [*self.forwarded, *words_of_trial(self.best.values)]
        if self.options.keep is not None:
            words.append("--keep=last")
        if not self._is_patient:
            epochs = self.best.values.get("epochs", self.options.epochs)
            return [*words, f"--eval_every={epochs}"]
        head_epochs = self.best.values.get("head_epochs", self.options.head_epochs)
        epochs = epochs_of_all_classes(self.best_epochs(), cast(int | None, head_epochs))
        return [*words, f"--epochs={epochs}", f"--eval_every={epochs}", "--patience=0"]

    @property
    def _is_patient(self) -> bool:
        """Whether the best trial's runs can stop before their last epoch."""
        return bool(self.best.values.get("patience", self.options.patience))

    def final_folder(self, seed: int) -> pathlib.Path:
        """Return the folder of a run with the best settings."""
        return self.folder / f"best-trial-{self.best.number}" / f"seed-{seed}"

    def classes_of_folds(self) -> list[int]:
        """Return the number of held-out classes of each fold."""
        fold = self.one_fold()
        count = fold.train.num_classes + fold.test.num_classes
        return [len(part) for part in np.array_split(np.arange(count), self.folds)]

    @property
    def sentence(self) -> str:
        """The best settings, for the terminal."""
        return (
            f"{self.recipe.stem}: best of {len(self.done)} trials "
            f"{' '.join(words_of_trial(self.best.values))}, "
            f"MAP@R {percents(self.scores)}{self.epochs and ', '}{self.epochs}"
        )

    @property
    def epochs(self) -> str:
        """The best epoch of each fold, or "" without patience."""
        if not self._is_patient:
            return ""
        each = " ".join(map(str, self.best_epochs()))
        return f"each fold after epoch {each}"

    def as_json(self) -> dict[str, Any]:
        """Return the result for `study.json`."""
        return {
            "space": [parameter.text for parameter in self.space],
            "best": {
                "trial": self.best.number,
                "values": dict(self.best.values),
                "map@r of the folds": list(self.scores),
            },
            "trials": [dataclasses.asdict(trial) for trial in self.done],
        }


def percents(fractions: Sequence[float]) -> str:
    """Format the mean and the values in percent."""
    each = " ".join(f"{100 * fraction:.1f}" for fraction in fractions)
    return f"{100 * float(np.mean(fractions)):.1f} (folds {each})"


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
    of_models = [_scores_of(output) for output in outputs]
    together = _concatenated(outputs, given)
    found: Scores = {}
    for score in compared():
        values = [scores.get(score.key) for scores in of_models if score.of_distance]
        each = [value for value in values if value is not None]
        if each and len(each) == len(of_models):
            found[score.label_at_1] = {
                "separate": float(np.mean(each)),
                "concatenated": float(together[score.key]),
            }
    return found


def _evaluated(run: pathlib.Path, flags: Sequence[str]) -> pathlib.Path:
    """Evaluate a fold's model on the test classes, and return the folder of the results."""
    output = run / "test"
    if not (output / EVALUATION).is_file():
        words = [f"--model={run / BEST}", *flags, "--noclustering", f"--output_dir={output}"]
        # An evaluation uses the devices of its process.
        run_module("experiments.evaluate", *words, name=f"the evaluation of {run}")
    return output


def _scores_of(folder: pathlib.Path) -> dict[str, float | None]:
    """Read the scores of an evaluation."""
    path = _checked(folder, EVALUATION)
    try:
        scores: dict[str, float | None] = read_json(path, _EVALUATION)["scores"]
    except ArgumentError as error:
        raise UsageError(f"{error}. {_evaluates_again(folder)}") from error
    return scores


def _checked(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Return the path of a file of an evaluation."""
    return Manifest(folder).check(name, _evaluates_again(folder), earlier=True)


def _evaluates_again(folder: pathlib.Path) -> str:
    return f"Delete {folder}, and the same command evaluates again"


def _concatenated(outputs: Sequence[pathlib.Path], flags: Sequence[str]) -> dict[str, float]:
    """Compute the scores of the concatenated normalized embeddings."""

    def concatenated(name: str) -> np.ndarray:
        return np.concatenate([_rows(output, f"{name}.npy") for output in outputs], axis=1)

    embeddings = concatenated("evaluation")
    tested, _ = data.data(parse(RunOptions, ["study", *flags]))
    gallery = tested.gallery
    return dict(
        metrics.evaluate(
            embeddings,
            tested.test.labels,
            [1],
            clustering=False,
            gallery=None if gallery is None else concatenated("evaluation_gallery"),
            gallery_labels=None if gallery is None else gallery.labels,
        )
    )


def _rows(folder: pathlib.Path, name: str) -> np.ndarray:
    """Read the embeddings of an evaluation, and normalize them."""
    path = _checked(folder, name)
    try:
        check_regular(path, sys.maxsize)
        return normalized(np.load(path))
    except (EOFError, OSError, ValueError) as error:
        raise UsageError(f"{path} is damaged. {_evaluates_again(folder)}") from error
