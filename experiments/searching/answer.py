"""Answers to a query: images, scores, and classes."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.options.visible import visible

# Measured with EfficientNet-Lite0, trained on 1,971 groceries: different photographs reach at most
# 0.991. Copies saved as JPEG reach 0.995 at quality 75, and 0.998 at quality 95.
GROUP_SIMILARITY = 0.995
# The number of classes in a summary.
_CLASSES = 5
# The power of the distance in a vote. Measured with EfficientNet-Lite0 on groceries: of the powers
# 4, 8, and 16, and of weights by rank, only 16 names the right class more often than the first
# answer in each trial, for 3 to 10 neighbors and 3 to 100 photographs per class.
_POWER = 16


class SearchResult(NamedTuple):
    """One neighbor.

    Attributes:
        item: The number of the image in the index.
        path: The path from the images' folder.
        score: The similarity or distance.
        class_name: The class, or "".
        alike: The paths of copies of the image.
        match: Whether the score reaches the threshold of a match. None without a calibration.
        space: Origin of the image's row in an index with a map: "new" (the new model), "mapped"
            (from the old model to the new one), or "old" (the old model). "" without a map.
    """

    item: int
    path: str
    score: float
    class_name: str = ""
    alike: tuple[str, ...] = ()
    match: bool | None = None
    space: str = ""

    @property
    def match_in_words(self) -> str:
        """ "match", "below threshold", or "" without a calibration."""
        return "" if self.match is None else "match" if self.match else "below threshold"


@dataclasses.dataclass(frozen=True)
class Conditions:
    """Conditions that the results must meet.

    Attributes:
        where: Pairs of a column and a value, as in `Columns.mask`.
        min_similarity: The smallest similarity of a result, or None.
        group_similarity: Results with at least this cosine similarity to each other are joined. 0
            joins none.
    """

    where: tuple[tuple[str, str], ...] = ()
    min_similarity: float | None = None
    group_similarity: float = GROUP_SIMILARITY

    def includes(self, score: float) -> bool:
        """Return whether a score is near enough."""
        # Rounding can make the similarity of equal images less than 1.
        return self.min_similarity is None or score >= self.min_similarity - 1e-6


class ClassVotes(NamedTuple):
    """The votes of the results for their class.

    Attributes:
        name: The class.
        results: The number of results.
        share: Their share of the votes, from 0 to 1.
    """

    name: str
    results: int
    share: float


ANYTHING = Conditions()
"""The default conditions: only copies are joined."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """The results of one query.

    Attributes:
        results: The results, nearest first.
        allowed: The number of images that meet the conditions on columns.
        nearest: The score of the nearest of these images, or None without images.
        metric: The metric of the scores.
    """

    results: tuple[SearchResult, ...]
    allowed: int = 0
    nearest: float | None = None
    metric: str = "cosine"

    @property
    def classes(self) -> list[ClassVotes]:
        """The classes of the results, most votes first, then nearest first.

        A result at the distance d has the weight d^-16, so that many distant results do not outvote
        the nearest ones. Of the cosine similarity s, d is √(2 - 2 s).

        Reference: Shepard 1968, "A two-dimensional interpolation function for irregularly-spaced
        data".
        """
        voting = [result for result in self.results if result.class_name]
        if not voting:
            return []
        scores = np.array([result.score for result in voting], np.float64)
        distances = np.sqrt(np.maximum(2 - 2 * scores, 0)) if self.metric == "cosine" else scores
        # A copy has the distance 0, or less than the rounding error.
        distances = np.maximum(distances, max(1e-3 * distances.max(), np.finfo(np.float64).tiny))
        weights = (distances.min() / distances) ** _POWER
        counts = collections.Counter(result.class_name for result in voting)
        shares = dict.fromkeys(counts, 0.0)  # in the order of the nearest result
        for result, share in zip(voting, weights / weights.sum()):
            shares[result.class_name] += float(share)
        found = [ClassVotes(name, counts[name], share) for name, share in shares.items()]
        return sorted(found, key=lambda votes: -votes.share)

    @property
    def verdict(self) -> str:
        """The number of matches in words. Empty without a calibration."""
        matches = [result.match for result in self.results if result.match is not None]
        if not matches:
            return ""
        if not any(matches):
            return "all below the threshold of a match"
        return f"{sum(matches)} of {len(matches)} match"

    @property
    def nothing(self) -> str:
        """The reason for an empty answer. Empty if there are results."""
        if self.results:
            return ""
        if self.nearest is None:
            return "no image of the index meets all conditions"
        return f"nothing similar enough: the nearest has {self.nearest:.4f}"


def answer_line(answer: Answer) -> str:
    """Summarize an answer, for example "4 of 5 match: juice, 3 of 5; milk, 2".

    Without a calibration, the summary lists only the classes, in the order of their votes.
    """
    classes = answer.classes
    counts = [f"{name}, {count}" for name, count, _ in classes[:_CLASSES]]
    if counts:
        counts[0] += f" of {len(answer.results)}"
    if others := len(classes) - len(counts):
        counts.append(f"{others} other classes")
    return ": ".join(filter(None, [answer.nothing or answer.verdict, "; ".join(counts)]))


def score_name(metric: str) -> str:
    """Return the name of an index's score."""
    return "cosine similarity" if metric == "cosine" else "distance (l2)"


def answers_text(metric: str, answers: Iterable[tuple[str, Answer]]) -> str:
    """Format queries and answers for a terminal."""
    lines = [f"rank  {score_name(metric)}"]
    for name, answer in answers:
        lines.append(visible(name))
        for rank, result in enumerate(answer.results, start=1):
            alike = f"  (and {len(result.alike)} alike)" if result.alike else ""
            match = f"{result.match_in_words:<17}" if result.match_in_words else ""
            mapped = "  (mapped)" if result.space == "mapped" else ""
            name = f"{visible(result.path)}{alike}{mapped}"
            lines.append(f"{rank:>4}  {result.score:.4f}  {match}{name}")
        if line := answer_line(answer):
            lines.append(visible(f"      {line}"))
    return "\n".join(lines)


def json_of(answer: Answer, metric: str) -> dict[str, Any]:
    """Convert an answer to JSON values, for the command and for the server."""
    score = "similarity" if metric == "cosine" else "distance"
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
                **({"space": result.space} if result.space else {}),
            }
            for rank, result in enumerate(answer.results, start=1)
        ],
        "classes": [
            {"class": name, "count": count, "votes": round(share, 6)}
            for name, count, share in answer.classes
        ],
        "allowed": answer.allowed,
        "nearest": None if answer.nearest is None else round(answer.nearest, 6),
        "nothing": answer.nothing,
    }


def folder_of(path: str) -> str:
    """Return the folder of an image's path, which is the default class."""
    return path.rpartition("/")[0]


def grouped(
    results: Sequence[SearchResult], embeddings: np.ndarray, similarity: float, k: int
) -> list[SearchResult]:
    """Return the first k results with copies joined to the nearest of them.

    Args:
        results: The results, nearest first. More than k results let copies be counted.
        embeddings: Their embeddings, float `[n, d]`.
        similarity: The cosine similarity of copies. 0 joins none.
        k: The number of results.
    """
    if not similarity:
        return list(results[:k])
    lengths = np.linalg.norm(embeddings.astype(np.float64), axis=1, keepdims=True)
    rows = embeddings / np.where(lengths, lengths, 1)
    groups: list[SearchResult] = []
    is_free = np.ones(len(rows), bool)
    for first, result in enumerate(results):
        if not is_free[first]:
            continue
        if len(groups) == k:
            break
        # Rounding can make the similarity of equal rows less than 1.
        is_copy = is_free & (rows @ rows[first] >= similarity - 1e-6)
        is_copy[: first + 1] = False
        is_free &= ~is_copy
        alike = tuple(results[row].path for row in np.flatnonzero(is_copy).tolist())
        groups.append(result._replace(alike=alike))
    return groups
