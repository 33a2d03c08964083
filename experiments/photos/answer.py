"""What a search answers with: images, each with its class, and the classes that they are of."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Answer", "SearchResult", "class_counts", "classes_line", "folder_of"]


class SearchResult(NamedTuple):
    """One neighbor: its number in the index, its path from the images' folder, its score, its
    class ("" for none)."""

    item: int
    path: str
    score: float
    class_name: str = ""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What is found for one image.

    Attributes:
        results: nearest first.
    """

    results: tuple[SearchResult, ...]

    @property
    def classes(self) -> list[tuple[str, int]]:
        """The classes of the results with how many each has; see `class_counts`."""
        return class_counts([result.class_name for result in self.results])


def class_counts(names: Sequence[str]) -> list[tuple[str, int]]:
    """Each class with how often it is named: most often first, of as many the one named first.

    Args:
        names: of classes, of the nearest result first; "" is none and not counted.

    Example:
        >>> class_counts(["juice", "milk", "milk", "", "melon"])
        [('milk', 2), ('juice', 1), ('melon', 1)]
    """
    return collections.Counter(name for name in names if name).most_common()


def classes_line(answer: Answer) -> str:
    """The classes of the results in words, "" where they have none: "juice, 3 of 5; milk, 2"."""
    of = f" of {len(answer.results)}"
    counts = [f"{name}, {count}" for name, count in answer.classes]
    return "; ".join(f"{text}{'' if place else of}" for place, text in enumerate(counts))


def folder_of(path: str) -> str:
    """The folder of an image's path, "" for none: its class unless something else says it."""
    return path.rpartition("/")[0]
