"""When a training stops because it no longer gets better on the classes that it is validated on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.evaluation.scores import MAP_AT_R
from experiments.options import RunOptions, UsageError

_COUNTS_ON_THE_END = "warm_cosine"


def check_patience(options: RunOptions) -> None:
    """Refuse patience that has nothing to watch, or stops what counts on its last step.

    Raises:
        UsageError: no fold, a single evaluation, or such a schedule.
    """
    if not options.patience:
        return
    received = f"Received: patience={options.patience}"
    if options.fold is None:
        raise UsageError(
            "patience needs training classes that are kept back to validate on, for no test class "
            "may say when to stop: give --fold=K/N, such as 1/4, or --patience=0. "
            f"{received}, fold=None"
        )
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
    """How many evaluations the score has not risen in.

    While the head alone is trained none counts: what comes then is another training.

    Args:
        history: the objects of `metrics.jsonl`.
        options: the run's.
    """
    if not history:
        return 0
    since = max(_best(history)["epoch"], options.head_epochs or 0)
    return sum(row["epoch"] > since for row in history)


def is_over(history: Sequence[Mapping[str, float]], options: RunOptions) -> bool:
    """Whether the run stops; a function of its log, so that one that was killed stops there too."""
    return 0 < options.patience <= waited(history, options)


def stopped(history: Sequence[Mapping[str, float]], options: RunOptions) -> str:
    """After which epoch a run that has come to its end was stopped, and why; "" if it was not."""
    if not is_over(history, options) or history[-1]["epoch"] >= options.epochs:
        return ""
    best, last = _best(history), history[-1]["epoch"]
    return (
        f"after epoch {last} of {options.epochs}: in {options.patience} evaluations MAP@R on fold "
        f"{options.fold} has not risen above the {100 * best[MAP_AT_R]:.1f} % of epoch "
        f"{best['epoch']}"
    )


def epochs_of_all_classes(best_epochs: Sequence[int], head_epochs: int | None) -> int:
    """How long to train where nothing is kept back to stop by.

    As long as the kept models of the folds have: the mean of their epochs, rounded; and, where the
    head begins alone, an epoch of all at least.

    Args:
        best_epochs: after which each was best.
        head_epochs: how many of them the head was trained alone.
    """
    mean = round(sum(best_epochs) / len(best_epochs))
    return max(mean, 1 + (head_epochs or 0))


def _best(history: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    return max(history, key=lambda row: row[MAP_AT_R])
