"""The search of one recipe over folds, and the runs with its best settings.

Protocol: Musgrave et al. 2020, "A Metric Learning Reality Check".
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from experiments.evaluation.held_folder import waiting_for
from experiments.options import RunOptions, UsageError, data, parse, resolved
from experiments.options.together import check_together
from experiments.training.objectives import objective_of
from experiments.training.optimizer import optimizer
from experiments.training.selection import check_selection, epochs_of_all_classes
from experiments.tuning.folds import FoldRuns, Run
from experiments.tuning.space import Parameter, Trial, own_values, words_of_trial
from keras_dml import losses
from pipelines.split import Split

if TYPE_CHECKING:
    from experiments.tuning.search import Search

__all__ = ["RecipeSearch", "SearchResult", "percents"]


@dataclasses.dataclass(frozen=True)
class RecipeSearch:
    """The search of one recipe.

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

    def check(self) -> None:
        """Refuse a search that cannot end well, before anything is written.

        Raises:
            ArgumentError: There are fewer training classes than folds, or the loss or the optimizer
                refuses a bound.
            UsageError: The recipe has no test classes, or sets a fold.
        """
        options = self.options
        if options.fold is not None:
            raise UsageError(
                "fold is chosen by the search, and must not be given. "
                f"Received: fold={options.fold}"
            )
        if options.class_split == "every_class":
            raise UsageError(
                "class_split must keep classes for the test, which a search ends with. "
                "Received: class_split=every_class"
            )
        on_fold = dataclasses.replace(options, fold=f"1/{self.folds}")
        check_together(on_fold)
        check_selection(on_fold)
        for parameter in self.space:
            for value in parameter.choices or (parameter.low, parameter.high):
                words = [*self._words, *words_of_trial({parameter.name: value})]
                tried = parse(RunOptions, ["study", *words])
                # The classes of these losses need the fitted model.
                if not losses.LOSSES[options.loss].trained_by:
                    objective_of(tried).loss()
                optimizer(tried, tried.learning_rate)
        self.one_fold()

    @property
    def _words(self) -> list[str]:
        return [f"--flagfile={self.recipe}", *self.forwarded, f"--seed={self.options.seed}"]

    def one_fold(self) -> Split:
        """Return the training classes, divided by the first fold."""
        return data.load(dataclasses.replace(self.options, fold=f"1/{self.folds}"))

    def open(self) -> Search:
        """Open the storage of the trials.

        Raises:
            UsageError, MissingExtraError: As `Search`.
        """
        from experiments.tuning.search import FLAGS, Search, study_flags  # imports Optuna

        identity = {
            FLAGS: study_flags(resolved(self.options).splitlines()),
            "space": [f"--search={parameter.text}" for parameter in self.space],
            "folds": [f"--folds={self.folds}"],
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

    @property
    def fold_runs(self) -> FoldRuns:
        """The runs of the trials."""
        words = (*self.forwarded, f"--seed={self.options.seed}")
        return FoldRuns(self.recipe, self.folder, words, self.folds, self.run)

    def do(self, search: Search) -> SearchResult:
        """Run the trials that are missing, and return the best one."""
        runs = self.fold_runs

        def score(trial: Trial) -> float:
            words = words_of_trial(trial.values)
            print(f"[{self.recipe.stem}, trial {trial.number + 1}] {' '.join(words)}", flush=True)
            of_folds = runs.train(trial.number, words)
            if of_folds is None:
                print("  the training broke", flush=True)
                return 0.0
            print(f"  MAP@R {percents(of_folds)}", flush=True)
            return float(np.mean(of_folds))

        search.do(self.trials, score)
        trials, best = search.trials(), search.best()
        if not best.score:
            raise UsageError(
                f"search has bounds within which every training of {self.recipe.stem} broke. "
                f"Received: {' '.join(f'search={parameter.text}' for parameter in self.space)}"
            )
        for trial in trials:
            if trial.number != best.number:
                runs.lighten(trial.number)
        with waiting_for(self._lock):
            # Trains again if the best trial's runs are on another machine.
            of_folds = runs.train(best.number, words_of_trial(best.values)) or []
        return SearchResult(self, trials, best, of_folds)

    @property
    def _lock(self) -> pathlib.Path:
        return self.folder / ".best.lock"

    def on_test_classes(self, best: Trial) -> dict[str, dict[str, float]]:
        """Evaluate the best trial's models on the test classes, as `FoldRuns.on_test_classes`."""
        with waiting_for(self._lock):
            return self.fold_runs.on_test_classes(best.number, words_of_trial(best.values))

    def final_words(self, best: Trial) -> list[str]:
        """Return the flags of a run with the best settings on all training classes.

        The run is evaluated only at its end, because choosing an epoch by the test classes would
        flatter the score. With patience, it is as long as the trainings of the folds' kept models.
        """
        words = [*self.forwarded, *words_of_trial(best.values)]
        if self.options.keep is not None:
            words.append("--keep=last")
        if not self.is_patient(best):
            epochs = best.values.get("epochs", self.options.epochs)
            return [*words, f"--eval_every={epochs}"]
        best_epochs = self.fold_runs.best_epochs(best.number)
        head_epochs = best.values.get("head_epochs", self.options.head_epochs)
        epochs = epochs_of_all_classes(best_epochs, cast(int | None, head_epochs))
        return [*words, f"--epochs={epochs}", f"--eval_every={epochs}", "--patience=0"]

    def is_patient(self, trial: Trial) -> bool:
        """Return whether a trial's runs can stop before their last epoch."""
        return bool(trial.values.get("patience", self.options.patience))

    def final_folder(self, best: Trial, seed: int) -> pathlib.Path:
        """Return the folder of a run with the best settings."""
        return self.folder / f"best-trial-{best.number}" / f"seed-{seed}"

    def classes_of_folds(self) -> list[int]:
        """Return the number of held-out classes of each fold."""
        fold = self.one_fold()
        count = fold.train.num_classes + fold.test.num_classes
        return [len(part) for part in np.array_split(np.arange(count), self.folds)]


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        of: The search.
        trials: All trials.
        best: The best trial.
        folds: Values of MAP@R of the best trial's folds.
    """

    of: RecipeSearch
    trials: Sequence[Trial]
    best: Trial
    folds: Sequence[float]

    @property
    def sentence(self) -> str:
        """The best settings, for the terminal."""
        return (
            f"{self.of.recipe.stem}: best of {len(self.trials)} trials "
            f"{' '.join(words_of_trial(self.best.values))}, "
            f"MAP@R {percents(self.folds)}{self.epochs and ', '}{self.epochs}"
        )

    @property
    def epochs(self) -> str:
        """The best epoch of each fold, or "" without patience."""
        if not self.of.is_patient(self.best):
            return ""
        each = " ".join(map(str, self.of.fold_runs.best_epochs(self.best.number)))
        return f"each fold after epoch {each}"

    def as_json(self) -> dict[str, Any]:
        """Return the result for `study.json`."""
        return {
            "space": [parameter.text for parameter in self.of.space],
            "best": {
                "trial": self.best.number,
                "values": dict(self.best.values),
                "map@r of the folds": list(self.folds),
            },
            "trials": [dataclasses.asdict(trial) for trial in self.trials],
        }


def percents(fractions: Sequence[float]) -> str:
    """Format the mean and the values in percent."""
    each = " ".join(f"{100 * fraction:.1f}" for fraction in fractions)
    return f"{100 * float(np.mean(fractions)):.1f} (folds {each})"
