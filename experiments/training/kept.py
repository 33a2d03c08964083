"""Which epoch's model a run keeps, evaluates, and exports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.evaluation.scores import ACCURACY, MAP_AT_R, RECALL_AT_1
from experiments.options import RunOptions, UsageError

# The values of --keep.
_LAST, _BEST_TEST, _BEST_FOLD = "last", "best_test", "best_fold"


def check_keep(options: RunOptions) -> None:
    """Raise `UsageError` if `--keep=best_fold` has no fold to choose by."""
    if options.keep == _BEST_FOLD and options.fold is None:
        raise UsageError(
            "keep must be last or best_test without --fold, but got best_fold. To choose the epoch "
            "on a part of the training classes, add --fold=K/N, such as --fold=1/4."
        )


def kept_by(options: RunOptions) -> str:
    """Return the rule that chooses the epoch: `last`, `best_test`, or `best_fold`.

    Without `--keep` it is `last`, or `best_fold` with `--fold`. A run with `--fold` sees no test
    image, so `best_test` means `best_fold` there.
    """
    if options.fold is None:
        return options.keep or _LAST
    return _LAST if options.keep == _LAST else _BEST_FOLD


def score(row: Mapping[str, float]) -> float:
    """Return the score that the best epoch is chosen by.

    Args:
        row: An object of `metrics.jsonl`.
    """
    return row[_score_of(row)[0]]


def kept(history: Sequence[Mapping[str, float]], options: RunOptions) -> Mapping[str, float]:
    """Return the evaluation whose model is kept, the first one of several with the same score.

    Args:
        history: The objects of `metrics.jsonl`, at least one.
        options: The options of the run.
    """
    return history[-1] if kept_by(options) == _LAST else max(history, key=score)


def kept_in_words(row: Mapping[str, float], options: RunOptions) -> str:
    """Return why this evaluation's model was kept, such as `the last`."""
    if kept_by(options) == _LAST:
        return "the last"
    measured = "the test images" if options.fold is None else f"fold {options.fold}"
    return f"the best by {_score_of(row)[1]} on {measured}"


def _score_of(row: Mapping[str, float]) -> tuple[str, str]:
    """Return the key of the score and its name.

    Accuracy if the test classes are the training classes, MAP@R if the run has patience, else R@1.
    """
    names = {ACCURACY: "accuracy", MAP_AT_R: "MAP@R", RECALL_AT_1: "R@1"}
    return next((key, name) for key, name in names.items() if key in row)
