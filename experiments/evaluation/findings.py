"""The findings of an audit, and their CSV file."""

from __future__ import annotations

import csv
import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

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
from pipelines.images.limits import MOST_PIXELS

COLUMNS = (
    "finding", "rank", "score", "set", "row", "image", "class", "suggested_class",
    "other_set", "other_row", "other_image", "other_class", "group",
)  # fmt: skip
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Thresholds:
    """The limits of a finding.

    Attributes:
        neighbors: Number of neighbors that vote on a label and define outliers.
        correlation, similarity: Arguments of `find_duplicates`.
        label_ratio: Argument of `label_errors`.
        outlier_score: Least score of an outlier, as from `outlier_scores`.
        max_pixels: Largest number of pixels of an image.
    """

    neighbors: int = 20
    correlation: float = 0.92
    similarity: float = 0.97
    label_ratio: float = 0.1
    outlier_score: float = 1.5
    max_pixels: int = MOST_PIXELS


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
    elif images.sets[0].name != "train":
        names["leaks"] = "queries that the gallery contains"
    return names


def find(images: AuditedImages, thresholds: Thresholds) -> Findings:
    """Audit images.

    Takes O(n²·d) time for up to 200,000 images. In addition to the embeddings, it needs memory for
    n·k numbers and 1,024 bytes for each image.
    """
    neighbors, similarities = _neighbors(images.embeddings, thresholds.neighbors)
    duplicates = find_duplicates(
        images,
        neighbors,
        similarities,
        thresholds.correlation,
        thresholds.similarity,
        thresholds.max_pixels,
    )
    votes = label_votes(images.labels, neighbors)
    scores = outlier_scores(similarities)
    outliers = np.flatnonzero(scores >= thresholds.outlier_score)
    return Findings(
        neighbors,
        similarities,
        duplicates,
        votes,
        label_errors(votes, thresholds.label_ratio),
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


def write_findings(path: pathlib.Path, images: AuditedImages, findings: Findings) -> None:
    """Write the findings as a CSV file with the columns `COLUMNS`.

    `score` is the correlation of a duplicate's pictures (without pictures, the similarity of the
    embeddings), the self-confidence of a label, the score of an outlier, or the share of votes
    between two classes.
    """
    with replacing(path) as unfinished, open(
        unfinished, "w", newline="", encoding="utf-8", errors="surrogateescape"
    ) as stream:  # fmt: skip
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(_lines(images, findings))


def _lines(images: AuditedImages, findings: Findings) -> Iterator[dict[str, Any]]:
    for rank, pair in enumerate(findings.duplicates.pairs, start=1):
        score = pair.similarity if pair.correlation is None else pair.correlation
        yield {
            "finding": pair.kind,
            "rank": rank,
            "score": f"{score:.4f}",
            **_image(images, pair.first),
            **{f"other_{name}": value for name, value in _image(images, pair.second).items()},
            "group": int(findings.duplicates.groups[pair.first]),
        }
    for rank, row in enumerate(findings.label_errors.tolist(), start=1):
        yield {
            "finding": "label error",
            "rank": rank,
            "score": f"{findings.votes.self_confidence[row]:.4f}",
            **_image(images, row),
            "suggested_class": images.class_names[findings.votes.suggested[row]],
        }
    for rank, row in enumerate(findings.outliers.tolist(), start=1):
        score = findings.outlier_scores[row]
        yield {"finding": "outlier", "rank": rank, "score": f"{score:.4f}", **_image(images, row)}
    for rank, pair_of_classes in enumerate(findings.confused, start=1):
        first, second = _classes(images, pair_of_classes)
        yield {
            "finding": "confused classes",
            "rank": rank,
            "score": f"{pair_of_classes.share:.4f}",
            "class": first,
            "other_class": second,
        }


def _classes(images: AuditedImages, pair: ConfusedClasses) -> tuple[str, str]:
    return images.class_names[int(pair.first)], images.class_names[int(pair.second)]  # type: ignore[call-overload]


def _image(images: AuditedImages, row: int) -> dict[str, Any]:
    each, number = images.place(row)
    return {
        "set": each.name,
        "row": number,
        "image": images.name(row),
        "class": images.class_name(row),
    }
