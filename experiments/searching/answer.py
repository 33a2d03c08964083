"""What a search answers with: images, each with its class, and the classes that they are of."""

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

# From here on two results are one photograph, saved again. By EfficientNet-Lite0 trained on 1,971
# groceries, no two different photographs come so near (at most 0.991); of files saved again as JPEG
# of quality 75 nearly all do (0.995 and more), of quality 95 all (0.998).
GROUP_SIMILARITY = 0.995
# Classes named in a line.
_CLASSES = 5


class SearchResult(NamedTuple):
    """One neighbor: its number in the index, its path from the images' folder, its score, its
    class ("" for none), the paths of others that are near-identical to it, and whether it matches
    the query (None where no calibration says it)."""

    item: int
    path: str
    score: float
    class_name: str = ""
    alike: tuple[str, ...] = ()
    match: bool | None = None

    @property
    def match_in_words(self) -> str:
        """ "match", "no match", or "" where nothing says it."""
        return "" if self.match is None else "match" if self.match else "no match"


@dataclasses.dataclass(frozen=True)
class Conditions:
    """What is asked of results, beside being near.

    Attributes:
        where: pairs of a column and a value, as `Columns.mask` takes them.
        min_similarity: the least that a result may have, or None.
        group_similarity: results that are at least so similar to each other are one, by the cosine
            of their embeddings; 0: each is one.
    """

    where: tuple[tuple[str, str], ...] = ()
    min_similarity: float | None = None
    group_similarity: float = GROUP_SIMILARITY


ANYTHING = Conditions()
"""No condition but that near-identical results are one."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What is found for one image.

    Attributes:
        results: nearest first.
        allowed: how many images could have been among them.
        nearest: the score of the nearest of these, similar enough or not; None where there is none.
    """

    results: tuple[SearchResult, ...]
    allowed: int = 0
    nearest: float | None = None

    @property
    def classes(self) -> list[tuple[str, int]]:
        """The classes of the results with how many each has; see `class_counts`."""
        return class_counts([result.class_name for result in self.results])

    @property
    def verdict(self) -> str:
        """How many of the results match, in words; "" where no calibration says it."""
        said = [result.match for result in self.results if result.match is not None]
        matches = sum(said)
        if not said:
            return ""
        return f"{matches} of {len(said)} match" if matches else "no match"

    @property
    def nothing(self) -> str:
        """Why there is no result, "" where there are some."""
        if self.results:
            return ""
        if self.nearest is None:
            return "no image of the index is all that is asked for"
        return f"nothing similar enough: the nearest has {self.nearest:.4f}"


def class_counts(names: Sequence[str]) -> list[tuple[str, int]]:
    """Each class with how often it is named: most often first, of as many the one named first.

    Args:
        names: of classes, of the nearest result first; "" is none and not counted.

    Examples:
        >>> class_counts(["juice", "milk", "milk", "", "melon"])
        [('milk', 2), ('juice', 1), ('melon', 1)]
    """
    return collections.Counter(name for name in names if name).most_common()


def answer_line(answer: Answer) -> str:
    """The answer in words: "4 of 5 match: juice, 3 of 5; milk, 2", or why there is none.

    Without a calibration the classes alone, "" where the results have none.
    """
    counts = [f"{name}, {count}" for name, count in answer.classes[:_CLASSES]]
    if counts:
        counts[0] += f" of {len(answer.results)}"
    if others := len(answer.classes) - len(counts):
        counts.append(f"{others} other classes")
    said = [answer.nothing or answer.verdict, "; ".join(counts)]
    return ": ".join(filter(None, said))


def json_of(answer: Answer, metric: str) -> dict[str, Any]:
    """An answer as JSON values: what the command prints and the local page's server sends."""
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
    """The folder of an image's path, "" for none: its class unless something else says it."""
    return path.rpartition("/")[0]
