"""Which queries went best and worst, and which classes are taken for others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Answers(NamedTuple):
    """What was found for some queries, best first.

    Attributes:
        queries: row numbers of the queries, `[m]`.
        labels: their classes, `[m]`.
        found: the classes of what was found, `[m, k]`.
        similarities: `[m, k]`.
    """

    queries: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    found: npt.NDArray[np.int64]
    similarities: npt.NDArray[np.float32]


class ClassRecall(NamedTuple):
    """R@1 of one class's queries.

    Attributes:
        label: the class.
        right, queries: how many found one of their own first, of how many.
        instead: the class that the others found first most often; None where there are none.
        example: the query, as a row number, that was wrong with the highest similarity; of a class
            without mistakes any.
    """

    label: int
    right: int
    queries: int
    instead: int | None
    example: int


def margins(answers: Answers) -> npt.NDArray[np.float32]:
    """How much nearer the nearest match is than the nearest other: similarities, `[m]`.

    Where no match, or no other, is among what was found, the last similarity stands for it.
    """
    match = answers.found == answers.labels[:, None]
    last = answers.similarities[:, -1]
    own, other = (
        np.where(mask.any(1), np.where(mask, answers.similarities, -np.inf).max(1), last)
        for mask in (match, ~match)
    )
    return (own - other).astype(np.float32)


def best_and_worst(
    answers: Answers, num: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Row numbers of the queries with the highest and with the lowest margins.

    Args:
        answers: of the queries to choose of.
        num: how many of each, at most; one of a class. None is in both.
    """
    gaps = margins(answers)
    order = np.argsort(-gaps, kind="stable")
    best = _one_of_a_class(order[gaps[order] > 0], answers, num)
    worst = _one_of_a_class(order[::-1][gaps[order[::-1]] < 0], answers, num)
    return best, worst


def _one_of_a_class(
    order: npt.NDArray[np.int64], answers: Answers, num: int
) -> npt.NDArray[np.int64]:
    _, first = np.unique(answers.labels[order], return_index=True)
    return answers.queries[order[np.sort(first)[:num]]]


def class_recalls(answers: Answers) -> list[ClassRecall]:
    """`ClassRecall` of each class that has queries, the lowest recall first."""
    right = answers.found[:, 0] == answers.labels
    # A stable order: of mistakes the most confident first, then those that are right.
    order = np.argsort(np.where(right, np.inf, -answers.similarities[:, 0]), kind="stable")
    found = []
    for label in np.unique(answers.labels):
        own = order[answers.labels[order] == label]
        instead = answers.found[own, 0][~right[own]]
        most = int(np.bincount(instead).argmax()) if len(instead) else None
        found.append(
            ClassRecall(
                int(label), int(right[own].sum()), len(own), most, int(answers.queries[own[0]])
            )
        )
    return sorted(found, key=lambda one: (one.right / one.queries, -one.queries, one.label))
