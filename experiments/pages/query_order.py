"""Which queries a page shows, and which classes are mistaken for others."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Answers(NamedTuple):
    """The neighbors of some queries, the nearest first.

    Attributes:
        queries: Row numbers of the queries, `[m]`.
        labels: Their classes, `[m]`.
        found: The classes of their neighbors, `[m, k]`.
        similarities: `[m, k]`.
    """

    queries: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    found: npt.NDArray[np.int64]
    similarities: npt.NDArray[np.float32]


class ClassRecall(NamedTuple):
    """R@1 of the queries of a class.

    Attributes:
        label: The class.
        right, queries: Number of queries whose nearest neighbor is of the class, and of queries.
        instead: The most frequent class of the other nearest neighbors; None without them.
        example: Row number of the wrong query with the highest similarity, or of any query if all
            are right.
    """

    label: int
    right: int
    queries: int
    instead: int | None
    example: int


def choose_queries(labels: npt.ArrayLike, num: int = 10, seed: int = 0) -> npt.NDArray[np.int64]:
    """Choose images to show as queries, evenly spaced over random images in the order of classes.

    Classes of one image are left out if there are others, because such a query has no match.

    Args:
        labels: Class of each image, integers `[n]`, n at least 1.
        num: Number of queries, at most.
        seed: Seed of the choice.

    Returns:
        Distinct row numbers, `[at most num]`.
    """
    labels = np.asarray(labels)
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    _, classes, sizes = np.unique(labels[shuffled], return_inverse=True, return_counts=True)
    if sizes.max() > 1:
        several = sizes[classes] > 1
        shuffled, classes = shuffled[several], classes[several]
    order = shuffled[np.argsort(classes, kind="stable")]
    num = min(num, len(order))
    return order[np.arange(num) * len(order) // num]


def margins(answers: Answers) -> npt.NDArray[np.float32]:
    """Return the similarity of the nearest match minus the nearest other similarity, `[m]`.

    If the neighbors contain no match or no other image, the last similarity replaces it.
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
    """Return the row numbers of the queries with the highest and with the lowest margins.

    Args:
        answers: The queries to choose from.
        num: Number of each, at most, one of a class. No query is in both.
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
    """Return the recall of each class that has queries, the lowest recall first."""
    right = answers.found[:, 0] == answers.labels
    # Stable: the most confident mistakes first, the right queries last.
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
    return sorted(found, key=lambda each: (each.right / each.queries, -each.queries, each.label))
