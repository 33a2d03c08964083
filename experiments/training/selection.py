"""Which epoch's model a run keeps, evaluates, and exports, and when a training stops early."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from experiments.evaluation.scores import ACCURACY, MAP_AT_R, RECALL_AT_1
from experiments.options import RunOptions, UsageError

# The values of --keep.
_LAST, _BEST_FOLD = "last", "best_fold"
# The schedule that needs its last step.
_COUNTS_ON_THE_END = "warm_cosine"
# The scores that choose the best epoch, the first one that a row has: accuracy if the test classes
# are the training classes, MAP@R if the run has patience, else R@1.
_NAMES = {ACCURACY: "accuracy", MAP_AT_R: "MAP@R", RECALL_AT_1: "R@1"}


def check_selection(options: RunOptions) -> None:
    """Check the flags of the kept epoch and of patience.

    Raises:
        UsageError: `--keep=best_fold` has no fold. Or with patience, the schedule needs its last
            step.
    """
    if options.keep == _BEST_FOLD and options.fold is None:
        raise UsageError(
            "keep must be last or best_test without --fold, but got best_fold. To choose the epoch "
            "on a part of the training classes, add --fold=K/N, such as --fold=1/4."
        )
    if options.patience and options.schedule == _COUNTS_ON_THE_END:
        raise UsageError(
            f"schedule must be constant or step with --patience, but got {options.schedule}, which "
            f"needs its last step. patience={options.patience} can end a training earlier."
        )


def kept_by(options: RunOptions) -> str:
    """Return the rule that chooses the epoch: `last`, `best_test`, or `best_fold`.

    Without `--keep` it is `last`, or `best_fold` with `--fold`. A run with `--fold` sees no test
    image, so `best_test` means `best_fold` there.
    """
    if options.fold is None:
        return options.keep or _LAST
    return _LAST if options.keep == _LAST else _BEST_FOLD


def kept(history: Sequence[Mapping[str, float]], options: RunOptions) -> Mapping[str, float]:
    """Return the evaluation whose model is kept, the first one of several with the same score.

    Args:
        history: The objects of `metrics.jsonl`, at least one.
        options: The options of the run.
    """
    if kept_by(options) == _LAST:
        return history[-1]
    return max(history, key=lambda row: row.get(_key(row), -math.inf))


def kept_in_words(row: Mapping[str, float], options: RunOptions) -> str:
    """Return why this evaluation's model was kept, such as `the last`."""
    if kept_by(options) == _LAST:
        return "the last"
    measured = "the test images" if options.fold is None else f"fold {options.fold}"
    return f"the best by {_NAMES[_key(row)]} on {measured}"


def waited(history: Sequence[Mapping[str, float]], options: RunOptions) -> int:
    """Return the number of evaluations since the best MAP@R.

    Evaluations while only the head trains do not count.

    Args:
        history: The objects of `metrics.jsonl`.
        options: The options of the run.
    """
    if not history:
        return 0
    since = max(_best(history)["epoch"], options.head_epochs or 0)
    return sum(row["epoch"] > since for row in history)


def is_over(history: Sequence[Mapping[str, float]], options: RunOptions) -> bool:
    """Return whether the run stops. It depends only on the log, so a resumed run stops too."""
    return 0 < options.patience <= waited(history, options)


def stopped(history: Sequence[Mapping[str, float]], options: RunOptions) -> str:
    """Return when and why a run stopped early, or "" if it did not."""
    if not is_over(history, options) or history[-1]["epoch"] >= options.epochs:
        return ""
    best, last = _best(history), history[-1]["epoch"]
    highest = 100 * best.get(MAP_AT_R, math.nan)
    return (
        f"after epoch {last} of {options.epochs}: in {options.patience} evaluations MAP@R on fold "
        f"{options.fold} has not risen above the {highest:.1f} % of epoch "
        f"{best['epoch']}"
    )


def epochs_of_all_classes(best_epochs: Sequence[int], head_epochs: int | None) -> int:
    """Return the number of epochs of a training without validation.

    It is the rounded mean over the folds' kept models, and at least one epoch after `head_epochs`.

    Args:
        best_epochs: Epochs of the kept models.
        head_epochs: Epochs in which only the head trains.
    """
    mean = round(sum(best_epochs) / len(best_epochs))
    return max(mean, 1 + (head_epochs or 0))


def _best(history: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    return max(history, key=lambda row: row.get(MAP_AT_R, -math.inf))


def _key(row: Mapping[str, float]) -> str:
    return next((key for key in _NAMES if key in row), RECALL_AT_1)
