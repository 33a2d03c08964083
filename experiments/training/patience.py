"""Early stopping by the score on a fold of the training classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.evaluation.scores import MAP_AT_R
from experiments.options import RunOptions, UsageError

_COUNTS_ON_THE_END = "warm_cosine"


def check_patience(options: RunOptions) -> None:
    """Check the flags of patience.

    Raises:
        UsageError: The run has only one evaluation, or the schedule needs its last step.
    """
    if not options.patience:
        return
    received = f"Received: patience={options.patience}"
    if options.schedule == _COUNTS_ON_THE_END:
        raise UsageError(
            f"patience may end a training before its last step, which schedule={options.schedule} "
            f"counts on: give --schedule=constant or step. {received}"
        )
    if 1 < options.eval_every >= options.epochs:
        raise UsageError(
            f"patience needs more than one evaluation, and eval_every={options.eval_every} makes "
            f"one of epochs={options.epochs}. {received}"
        )


def waited(history: Sequence[Mapping[str, float]], options: RunOptions) -> int:
    """Return the number of evaluations since the best score.

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
    return (
        f"after epoch {last} of {options.epochs}: in {options.patience} evaluations MAP@R on fold "
        f"{options.fold} has not risen above the {100 * best[MAP_AT_R]:.1f} % of epoch "
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
    return max(history, key=lambda row: row[MAP_AT_R])
