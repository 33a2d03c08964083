"""One recipe's search over folds, and what comes of it: settings, runs on all of its data, a page.

The protocol is that of Musgrave et al. 2020, "A Metric Learning Reality Check".
"""

from __future__ import annotations

import dataclasses
import html
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from experiments.embedding.held_folder import waiting_for
from experiments.options import (
    RunOptions,
    UsageError,
    data,
    declarations,
    loss_flags,
    resolved,
)
from experiments.report.tables import html_table
from experiments.report.trials_figure import Tried, trials_svg
from experiments.training.patience import check_patience, epochs_of_all_classes
from experiments.tuning.folds import FoldRuns, Run
from experiments.tuning.space import Parameter, Trial, Value, own_values, words_of_trial
from keras_dml import losses
from pipelines.split import Split

if TYPE_CHECKING:
    from experiments.tuning.search import Search

__all__ = ["RecipeSearch", "SearchResult", "test_rows"]


@dataclasses.dataclass(frozen=True)
class RecipeSearch:
    """The search of one recipe.

    Attributes:
        recipe: its flag file.
        folder: of all that is written of it.
        forwarded: flags of every run but its seed.
        options: what they and the recipe give, with the seed of the search.
        space: what is searched.
        folds: how many parts of the training classes there are.
        trials: how many there are to be.
        storage: URL of the trials' storage; None: a file in the folder.
        run: trains.
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
        """Refuse what could not end well, before anything is written.

        Of the data only the folds are looked at: the test images are not even in the table.

        Raises:
            ArgumentError: fewer training classes than folds; a bound that the loss refuses.
            UsageError: a recipe that measures nothing, or on a fold already.
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
        check_patience(dataclasses.replace(options, fold=f"1/{self.folds}"))
        self._check_bounds()
        self.one_fold()

    def one_fold(self) -> Split:
        """The training classes alone, the first fold kept back."""
        return data.load(dataclasses.replace(self.options, fold=f"1/{self.folds}"))

    def _check_bounds(self) -> None:
        """ArgumentError of bounds that the loss refuses."""
        options = self.options
        if losses.LOSSES[options.loss].trained_by:
            return
        held = declarations(RunOptions)
        for parameter in self.space:
            if held[parameter.name][0] != "given_for_loss":
                continue
            kind = held[parameter.name][2].kind
            for value in parameter.choices or (parameter.low, parameter.high):
                given = {**options.loss_arguments, parameter.name: _of_kind(kind, value)}
                own, of_cross_entropy = loss_flags.divided(options.loss, given)
                losses.get(options.loss, **own)
                losses.CrossEntropyLoss(**of_cross_entropy)

    def open(self) -> Search:
        """The trials, wherever they are stored.

        Raises:
            UsageError, MissingExtraError: as of `Search`.
        """
        from experiments.tuning.search import FLAGS, Search, study_flags  # Optuna comes with it

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
        """Every trial that is not done yet, as `open` has given them; then the best one's folds."""
        runs = self.fold_runs

        def score(trial: Trial) -> float:
            said = " ".join(words_of_trial(trial.values))
            print(f"[{self.recipe.stem}, trial {trial.number + 1} of {self.trials}] {said}",
                  flush=True)  # fmt: skip
            of_folds = runs.train(trial.number, words_of_trial(trial.values))
            if of_folds is None:
                print("  the training broke", flush=True)
                return 0.0
            print(f"  MAP@R {_percents(of_folds)}", flush=True)
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
        # Trained again where another machine has done it.
        with waiting_for(self._lock):
            of_folds = runs.train(best.number, words_of_trial(best.values)) or []
        return SearchResult(self, trials, best, of_folds)

    @property
    def _lock(self) -> pathlib.Path:
        return self.folder / ".best.lock"

    def on_test_classes(self, best: Trial) -> dict[str, dict[str, float]]:
        """The best trial's models on the test classes, as of `FoldRuns.on_test_classes`."""
        with waiting_for(self._lock):
            return self.fold_runs.on_test_classes(best.number, words_of_trial(best.values))

    def final_words(self, best: Trial) -> list[str]:
        """The flags of a run with the best settings on all training classes.

        Measured at its end alone: the epoch that scores best on the test classes would be a choice
        by them. Where the folds' runs have patience, it is as long as their kept models have been
        trained.
        """
        words = [*self.forwarded, *words_of_trial(best.values)]
        if self.options.keep is not None:  # without a fold, the other rules choose by test scores
            words.append("--keep=last")
        if not self.is_patient(best):
            epochs = best.values.get("epochs", self.options.epochs)
            return [*words, f"--eval_every={epochs}"]
        best_epochs = self.fold_runs.best_epochs(best.number)
        head_epochs = best.values.get("head_epochs", self.options.head_epochs)
        epochs = epochs_of_all_classes(best_epochs, cast(int | None, head_epochs))
        return [*words, f"--epochs={epochs}", f"--eval_every={epochs}", "--patience=0"]

    def is_patient(self, trial: Trial) -> bool:
        """Whether a trial's runs may stop before their last epoch."""
        return bool(trial.values.get("patience", self.options.patience))

    def final_folder(self, best: Trial, seed: int) -> pathlib.Path:
        """Where such a run is."""
        return self.folder / f"best-trial-{best.number}" / f"seed-{seed}"


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """What a search has found.

    Attributes:
        of: the search.
        trials: all of them.
        best: the best.
        folds: MAP@R of its folds.
    """

    of: RecipeSearch
    trials: Sequence[Trial]
    best: Trial
    folds: Sequence[float]

    @property
    def sentence(self) -> str:
        """The best settings."""
        return (
            f"{self.of.recipe.stem}: best of {len(self.trials)} trials "
            f"{' '.join(words_of_trial(self.best.values))}, "
            f"MAP@R {_percents(self.folds)}{self._epochs and ', '}{self._epochs}"
        )

    @property
    def _epochs(self) -> str:
        """After which epochs the folds were best, where they could be stopped."""
        if not self.of.is_patient(self.best):
            return ""
        each = " ".join(map(str, self.of.fold_runs.best_epochs(self.best.number)))
        return f"each fold after epoch {each}"

    def as_json(self) -> dict[str, Any]:
        """For `study.json`."""
        return {
            "space": [parameter.text for parameter in self.of.space],
            "best": {"trial": self.best.number, "values": dict(self.best.values),
                     "map@r of the folds": list(self.folds)},
            "trials": [dataclasses.asdict(trial) for trial in self.trials],
        }  # fmt: skip

    def html(self) -> str:
        """A section of the page: the trials, and the best one's folds."""
        stem, best = self.of.recipe.stem, self.best
        order = sorted(self.trials, key=lambda trial: trial.number)
        tried = [Tried(t.values, 100 * t.score if t.score else None) for t in order]
        logarithmic = [parameter.name for parameter in self.of.space if parameter.log]
        figure = trials_svg(
            f"trials of {stem}",
            tried,
            order.index(best),
            logarithmic,
            "MAP@R, %, mean of the folds",
        )
        classes = self._classes()
        folds = html_table(
            ["fold", "measured", "trained", "MAP@R, %"],
            [
                (str(number), [f"{measured} classes", f"{sum(classes) - measured} classes",
                               f"{100 * score:.1f}"])
                for number, (measured, score) in enumerate(zip(classes, self.folds), start=1)
            ],
        )  # fmt: skip
        words = " ".join(
            f"<code>{html.escape(word)}</code>" for word in words_of_trial(best.values)
        )
        text = (
            f"{len(order)} trials, each trained {self.of.folds} times; the best is "
            f"number {best.number + 1}: {words}. Its folds, all of training "
            "classes; no test class was looked at."
        )
        if self._epochs:
            text += f" Kept: {self._epochs}; the runs over seeds take their mean."
        if any(trial.score is None for trial in tried):
            text += " A cross is a training that broke."
        shown = html.escape(stem)
        return (
            f'<div class="columns"><section class="card scroll"><h2>Search of {shown}</h2>'
            f'<p class="soft">{text}</p>{folds}</section>'
            f'<section class="card"><h2>Trials of {shown}</h2><figure>{figure}</figure></section>'
            "</div>"
        )

    def _classes(self) -> list[int]:
        fold = self.of.one_fold()
        count = fold.train.num_classes + fold.test.num_classes
        return [len(part) for part in np.array_split(np.arange(count), self.of.folds)]


def test_rows(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[list[str]]:
    """A table's head and lines: of each recipe the folds' models on the test classes, percent."""
    names = list(dict.fromkeys(name for of_one in found.values() for name in of_one))
    kinds = ("separate", "concatenated")
    head = ["models of the folds", *(f"{name}, {kind}" for name in names for kind in kinds)]
    rows = [
        [recipe, *(_shown(of_one.get(name, {}).get(kind)) for name in names for kind in kinds)]
        for recipe, of_one in found.items()
    ]
    return [head, *rows]


def _of_kind(kind: type, value: Value) -> Any:
    if kind is bool:
        return value == "true"
    return kind(value)


def _shown(fraction: float | None) -> str:
    return "–" if fraction is None else f"{100 * fraction:.1f}"


def _percents(fractions: Sequence[float]) -> str:
    each = " ".join(f"{100 * fraction:.1f}" for fraction in fractions)
    return f"{100 * float(np.mean(fractions)):.1f} (folds {each})"
