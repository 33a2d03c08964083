"""The findings of an audit, and their CSV file."""

from __future__ import annotations

import csv
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from experiments.evaluation.audited_images import AuditedImages
from experiments.evaluation.duplicates import Duplicates, find_duplicates
from keras_dml._files.atomic import replacing
from keras_dml.metrics.audit import (
    ConfusedClasses,
    LabelVotes,
    confused_classes,
    label_errors,
    label_votes,
    outlier_scores,
)
from keras_dml.metrics.neighbors import make_index, neighbor_blocks
from keras_dml.retrieval import TreeAH, build_index, scann_loads

COLUMNS = (
    "finding", "rank", "score", "set", "row", "image", "class", "suggested_class",
    "other_set", "other_row", "other_image", "other_class", "group",
)  # fmt: skip
#: Number of neighbors that vote on a label and define outliers.
NEIGHBORS = 20
#: Argument of `label_errors`, and the least score of an outlier (Tukey's fence).
LABEL_RATIO, OUTLIER_SCORE = 0.1, 1.5
_COUNTED = {
    "leaks": "images that training has seen",
    "duplicates": "near-duplicates to spare",
    "label_errors": "labels probably wrong",
    "outliers": "outliers",
}
# ScaNN's tree finds the neighbors of more images. For this number and d = 512, an exact search
# takes about five minutes on 2 cores.
_EXACT = 200_000
_TARGET_RECALL = 0.95
# Confused classes in the file. The page shows fewer.
_MOST_CONFUSED = 1000


class Thresholds(NamedTuple):
    """The limits of a duplicate, and of an image file.

    Attributes:
        correlation, similarity, max_pixels: Arguments of `find_duplicates`.
    """

    correlation: float
    similarity: float
    max_pixels: int


@dataclasses.dataclass(frozen=True)
class Findings:
    """The findings.

    Attributes:
        neighbors, similarities: Neighbors of each row, `[n, k]`.
        duplicates: Groups of the same image.
        votes: Votes of the neighbors on each label.
        label_errors: Rows of probably wrong labels, the most probable first.
        outliers: Rows of the outliers, the farthest first.
        outlier_scores: Score of each row, float64 `[n]`.
        confused: Pairs of class numbers, the most confused first.
    """

    neighbors: npt.NDArray[np.int64]
    similarities: npt.NDArray[np.float32]
    duplicates: Duplicates
    votes: LabelVotes
    label_errors: npt.NDArray[np.int64]
    outliers: npt.NDArray[np.int64]
    outlier_scores: npt.NDArray[np.float64]
    confused: list[ConfusedClasses]

    def counts(self, images: AuditedImages) -> dict[str, int]:
        """Return the number of `duplicates`, `leaks`, `label_errors`, and `outliers`."""
        leaked = extra = 0
        for rows in self.duplicates.larger_groups():
            sets = images.set_numbers(rows)
            extra += len(rows) - 1
            leaked += int(np.count_nonzero(sets != sets.min()))
        return {
            "duplicates": extra,
            "leaks": leaked,
            "label_errors": len(self.label_errors),
            "outliers": len(self.outliers),
        }


def count_names(images: AuditedImages) -> dict[str, str]:
    """Return the text of each count of `Findings.counts` that these sets can have."""
    names = dict(_COUNTED)
    if len(images.sets) == 1:
        del names["leaks"]
    elif "train" not in images.sets:
        names["leaks"] = "queries that the gallery contains"
    return names


def find(images: AuditedImages, thresholds: Thresholds) -> Findings:
    """Audit images.

    Takes O(n²·d) time for up to 200,000 images. In addition to the embeddings, it needs memory for
    n·k numbers and 1,024 bytes for each image.
    """
    neighbors, similarities = _neighbors(images.embeddings, NEIGHBORS)
    duplicates = find_duplicates(images, neighbors, similarities, *thresholds)
    votes = label_votes(images.labels, neighbors)
    scores = outlier_scores(similarities)
    outliers = np.flatnonzero(scores >= OUTLIER_SCORE)
    return Findings(
        neighbors,
        similarities,
        duplicates,
        votes,
        label_errors(votes, LABEL_RATIO),
        outliers[np.argsort(-scores[outliers], kind="stable")],
        scores,
        confused_classes(images.labels, neighbors, _MOST_CONFUSED),
    )


def _neighbors(
    embeddings: npt.NDArray[np.float32], k: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return the k nearest other rows of each row, or all of them if there are fewer."""
    count = len(embeddings)
    k = min(k, count - 1)
    rows = np.empty((count, k), np.int64)
    scores = np.empty((count, k), np.float32)
    if not k:
        return rows, scores
    if count > _EXACT and scann_loads():
        index = build_index(embeddings, tree=TreeAH(target_recall=_TARGET_RECALL))
    else:
        index = make_index(embeddings, "cosine")
    for block, found, near in neighbor_blocks(index, embeddings, k, np.arange(count)):
        rows[block], scores[block] = found, near
    return rows, scores


def write_findings(path: pathlib.Path, lines: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write the lines of `lines_of` as a CSV file with the columns `COLUMNS`."""
    with replacing(path) as unfinished, open(
        unfinished, "w", newline="", encoding="utf-8", errors="surrogateescape"
    ) as stream:  # fmt: skip
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for found in lines.values():
            writer.writerows(found)


def lines_of(images: AuditedImages, findings: Findings) -> dict[str, list[dict[str, Any]]]:
    """Return the findings of each kind as lines with some of the columns `COLUMNS`.

    `score` is the correlation of a duplicate's pictures (without pictures, the similarity of the
    embeddings), the self-confidence of a label, the score of an outlier, or the share of votes
    between two classes.
    """
    duplicates, votes, names = findings.duplicates, findings.votes, images.class_names
    lines: dict[str, list[dict[str, Any]]] = {
        "duplicates": [
            {
                "finding": pair.kind,
                "score": pair.score,
                **_image(images, pair.first),
                **{f"other_{name}": value for name, value in _image(images, pair.second).items()},
                "group": int(duplicates.groups[pair.first]),
            }
            for pair in duplicates.pairs
        ],
        "label_errors": [
            {
                "finding": "label error",
                "score": votes.self_confidence[row],
                **_image(images, row),
                "suggested_class": names[votes.suggested[row]],
            }
            for row in findings.label_errors.tolist()
        ],
        "outliers": [
            {"finding": "outlier", "score": findings.outlier_scores[row], **_image(images, row)}
            for row in findings.outliers.tolist()
        ],
        "confused": [
            {
                "finding": "confused classes",
                "score": pair.share,
                "class": names[int(pair.first)],  # type: ignore[call-overload]
                "other_class": names[int(pair.second)],  # type: ignore[call-overload]
            }
            for pair in findings.confused
        ],
    }
    for found in lines.values():
        for rank, line in enumerate(found, start=1):
            line |= {"rank": rank, "score": f"{line['score']:z.4f}"}
    return lines


def _image(images: AuditedImages, row: int) -> dict[str, Any]:
    of_set, _, number = images.place(row)
    return {
        "set": of_set,
        "row": number,
        "image": images.name(row),
        "class": images.class_name(row),
    }
