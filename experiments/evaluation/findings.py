"""The findings of an audit, and their CSV file."""

from __future__ import annotations

import csv
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from experiments.evaluation.audit_options import AuditOptions
from experiments.evaluation.audited_images import AuditedImages
from experiments.evaluation.duplicates import Duplicates, find_duplicates
from experiments.evaluation.query_order import nearest
from keras_dml._files.atomic import replacing
from keras_dml.metrics import audit
from keras_dml.metrics.neighbors import make_index
from keras_dml.retrieval import TreeAH, build_index, scann_loads

COLUMNS = (
    "finding", "rank", "score", "set", "row", "image", "class", "suggested_class",
    "other_set", "other_row", "other_image", "other_class", "group",
)  # fmt: skip
#: Number of neighbors that vote on a label and define outliers.
NEIGHBORS = 20
#: Argument of `label_errors`, and the least score of an outlier (Tukey's fence).
LABEL_RATIO, OUTLIER_SCORE = 0.1, 1.5
# ScaNN's tree finds the neighbors of more images. For this number and d = 512, an exact search
# takes about five minutes on 2 cores.
_EXACT = 200_000
_TARGET_RECALL = 0.95
# Confused classes in the file. The page shows fewer.
_MOST_CONFUSED = 1000


class Count(NamedTuple):
    """The number of findings of a kind.

    Attributes:
        name: Name of the limit's option without "max_".
        text: The findings in words.
        found: Their number.
        limit: How many are allowed; None for any number.
    """

    name: str
    text: str
    found: int
    limit: int | None

    @property
    def is_over(self) -> bool:
        """Whether more are found than are allowed."""
        return self.limit is not None and self.found > self.limit


@dataclasses.dataclass(frozen=True)
class Findings:
    """The findings.

    Attributes:
        images: The audited images.
        options: The options of the audit.
        neighbors, similarities: Neighbors of each row, `[n, k]`.
        duplicates: Groups of the same image.
        votes: Votes of the neighbors on each label.
        label_errors: Rows of probably wrong labels, the most probable first.
        outliers: Rows of the outliers, the farthest first.
        outlier_scores: Score of each row, float64 `[n]`.
        confused: Pairs of class numbers, the most confused first.
    """

    images: AuditedImages
    options: AuditOptions
    neighbors: npt.NDArray[np.int64]
    similarities: npt.NDArray[np.float32]
    duplicates: Duplicates
    votes: audit.LabelVotes
    label_errors: npt.NDArray[np.int64]
    outliers: npt.NDArray[np.int64]
    outlier_scores: npt.NDArray[np.float64]
    confused: list[audit.ConfusedClasses]

    def counts(self) -> list[Count]:
        """Return the number of findings of each kind that these sets can have, and its limit."""
        leaks = duplicates = 0
        for rows in self.duplicates.larger_groups():
            sets = self.images.set_numbers(rows)
            duplicates += len(rows) - 1
            leaks += int(np.count_nonzero(sets != sets.min()))
        leaked = "queries that the gallery contains"
        if "train" in self.images.sets:
            leaked = "images that training has seen"
        found = [
            ("leaks", leaked, leaks),
            ("duplicates", "near-duplicates to spare", duplicates),
            ("label_errors", "labels probably wrong", len(self.label_errors)),
            ("outliers", "outliers", len(self.outliers)),
        ]
        counts = [
            Count(name, text, number, getattr(self.options, f"max_{name}"))
            for name, text, number in found
        ]
        return counts if len(self.images.sets) > 1 else counts[1:]


def find(images: AuditedImages, options: AuditOptions) -> Findings:
    """Audit images.

    Takes O(n²·d) time for up to 200,000 images. In addition to the embeddings, it needs memory for
    n·k numbers and 1,024 bytes for each image.
    """
    neighbors, similarities = _neighbors(images.embeddings)
    votes = audit.label_votes(images.labels, neighbors)
    scores = audit.outlier_scores(similarities)
    outliers = np.flatnonzero(scores >= OUTLIER_SCORE)
    return Findings(
        images,
        options,
        neighbors,
        similarities,
        find_duplicates(images, neighbors, similarities, options),
        votes,
        audit.label_errors(votes, LABEL_RATIO),
        outliers[np.argsort(-scores[outliers], kind="stable")],
        scores,
        audit.confused_classes(images.labels, neighbors, _MOST_CONFUSED),
    )


def _neighbors(
    embeddings: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return the nearest other rows of each row, or all of them if there are fewer."""
    count = len(embeddings)
    if count == 1:
        return np.empty((1, 0), np.int64), np.empty((1, 0), np.float32)
    if count > _EXACT and scann_loads():
        index = build_index(embeddings, tree=TreeAH(target_recall=_TARGET_RECALL))
    else:
        index = make_index(embeddings, "cosine")
    return nearest(index, embeddings, min(NEIGHBORS, count - 1), np.arange(count))


def write_findings(path: pathlib.Path, lines: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write the lines of `lines_of` as a CSV file with the columns `COLUMNS`."""
    with replacing(path) as unfinished, open(
        unfinished, "w", newline="", encoding="utf-8", errors="surrogateescape"
    ) as stream:  # fmt: skip
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for found in lines.values():
            writer.writerows(found)


def lines_of(findings: Findings) -> dict[str, list[dict[str, Any]]]:
    """Return the findings of each kind as lines with some of the columns `COLUMNS`.

    `score` is the correlation of a duplicate's pictures (without pictures, the similarity of the
    embeddings), the self-confidence of a label, the score of an outlier, or the share of votes
    between two classes.
    """
    images, duplicates, votes = findings.images, findings.duplicates, findings.votes
    names = images.class_names
    lines: dict[str, list[dict[str, Any]]] = {
        kind: [] for kind in ("duplicates", "label_errors", "outliers", "confused")
    }

    def add(kind: str, finding: str, score: float, cells: dict[str, Any]) -> None:
        rank = len(lines[kind]) + 1
        lines[kind].append({"finding": finding, "rank": rank, "score": f"{score:z.4f}", **cells})

    def image(row: int, of: str = "") -> dict[str, Any]:
        of_set, _, number = images.place(row)
        return {
            f"{of}set": of_set,
            f"{of}row": number,
            f"{of}image": images.name(row),
            f"{of}class": images.class_name(row),
        }

    for (first, second), score in zip(duplicates.pairs.tolist(), duplicates.scores):
        group = {"group": int(duplicates.groups[first])}
        add("duplicates", "near-duplicate", score, image(first) | image(second, "other_") | group)
    for row in findings.label_errors.tolist():
        suggested = {"suggested_class": names[votes.suggested[row]]}
        add("label_errors", "label error", votes.self_confidence[row], image(row) | suggested)
    for row in findings.outliers.tolist():
        add("outliers", "outlier", findings.outlier_scores[row], image(row))
    for pair in findings.confused:
        one, other = int(pair.first), int(pair.second)  # type: ignore[call-overload]
        classes = {"class": names[one], "other_class": names[other]}
        add("confused", "confused classes", pair.share, classes)
    return lines
