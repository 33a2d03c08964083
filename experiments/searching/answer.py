"""Answers to a query: images, scores, and classes."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = [
    "ANYTHING",
    "GROUP_SIMILARITY",
    "Answer",
    "Conditions",
    "SearchResult",
    "answer_line",
    "class_counts",
    "folder_of",
    "json_of",
]

# Measured with EfficientNet-Lite0, trained on 1,971 groceries: different photographs reach at most
# 0.991. Copies saved as JPEG reach 0.995 at quality 75, and 0.998 at quality 95.
GROUP_SIMILARITY = 0.995
# The number of classes in a summary.
_CLASSES = 5


class SearchResult(NamedTuple):
    """One neighbor.

    Attributes:
        item: the number of the image in the index.
        path: the path from the images' folder.
        score: the similarity or distance.
        class_name: the class, or "".
        alike: the paths of copies of the image.
        match: whether the image matches the query. None without a calibration.
    """

    item: int
    path: str
    score: float
    class_name: str = ""
    alike: tuple[str, ...] = ()
    match: bool | None = None

    @property
    def match_in_words(self) -> str:
        """ "match", "no match", or "" without a calibration."""
        return "" if self.match is None else "match" if self.match else "no match"


@dataclasses.dataclass(frozen=True)
class Conditions:
    """Conditions that the results must meet.

    Attributes:
        where: pairs of a column and a value, as in `Columns.mask`.
        min_similarity: the smallest similarity of a result, or None.
        group_similarity: results with at least this cosine similarity to each other are joined. 0
            joins none.
    """

    where: tuple[tuple[str, str], ...] = ()
    min_similarity: float | None = None
    group_similarity: float = GROUP_SIMILARITY


ANYTHING = Conditions()
"""The default conditions: only copies are joined."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """The results of one query.

    Attributes:
        results: the results, nearest first.
        allowed: the number of images that meet the conditions on columns.
        nearest: the score of the nearest of these images, or None without images.
    """

    results: tuple[SearchResult, ...]
    allowed: int = 0
    nearest: float | None = None

    @property
    def classes(self) -> list[tuple[str, int]]:
        """The classes of the results with their counts, as in `class_counts`."""
        return class_counts([result.class_name for result in self.results])

    @property
    def verdict(self) -> str:
        """The number of matches in words. Empty without a calibration."""
        said = [result.match for result in self.results if result.match is not None]
        matches = sum(said)
        if not said:
            return ""
        return f"{matches} of {len(said)} match" if matches else "no match"

    @property
    def nothing(self) -> str:
        """The reason for an empty answer. Empty if there are results."""
        if self.results:
            return ""
        if self.nearest is None:
            return "no image of the index meets all conditions"
        return f"nothing similar enough: the nearest has {self.nearest:.4f}"


def class_counts(names: Sequence[str]) -> list[tuple[str, int]]:
    """Count classes, most frequent first. Ties keep the order of the names.

    Args:
        names: the classes of the results, nearest first. Empty names are not counted.

    Examples:
        >>> class_counts(["juice", "milk", "milk", "", "melon"])
        [('milk', 2), ('juice', 1), ('melon', 1)]
    """
    return collections.Counter(name for name in names if name).most_common()


def answer_line(answer: Answer) -> str:
    """Summarize an answer, for example "4 of 5 match: juice, 3 of 5; milk, 2".

    Without a calibration, the summary lists only the classes.
    """
    counts = [f"{name}, {count}" for name, count in answer.classes[:_CLASSES]]
    if counts:
        counts[0] += f" of {len(answer.results)}"
    if others := len(answer.classes) - len(counts):
        counts.append(f"{others} other classes")
    said = [answer.nothing or answer.verdict, "; ".join(counts)]
    return ": ".join(filter(None, said))


def json_of(answer: Answer, metric: str) -> dict[str, Any]:
    """Convert an answer to JSON values, for the command and for the server."""
    score = "similarity" if metric == "cosine" else "distance"
    nearest = None if answer.nearest is None else round(answer.nearest, 6)
    return {
        "neighbours": [
            {
                "rank": rank,
                "item": result.item,
                "path": result.path,
                "class": result.class_name,
                score: round(result.score, 6),
                "alike": list(result.alike),
                **({} if result.match is None else {"match": result.match}),
            }
            for rank, result in enumerate(answer.results, start=1)
        ],
        "classes": [{"class": name, "count": count} for name, count in answer.classes],
        "allowed": answer.allowed,
        "nearest": nearest,
        "nothing": answer.nothing,
    }


def folder_of(path: str) -> str:
    """Return the folder of an image's path, which is the default class."""
    return path.rpartition("/")[0]
