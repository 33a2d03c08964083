"""An audit: near-duplicates, probably wrong labels, outliers, and confused classes."""

from __future__ import annotations

import csv
import dataclasses
import functools
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from PIL import Image

from experiments.evaluation.embed import raw_pixels
from experiments.evaluation.embedded_sets import EmbeddedSet, embeddings_from_file, nearest
from experiments.options.audit_options import AuditOptions
from experiments.options.errors import UsageError
from keras_dml._common.labels import joined_labels
from keras_dml._common.progress import Bar
from keras_dml._common.rows import finite_rows
from keras_dml._files.atomic import replacing
from keras_dml.metrics import audit
from keras_dml.metrics.audit import duplicate_groups
from keras_dml.metrics.neighbors import make_index
from keras_dml.retrieval import TreeAH, build_index, scann_loads
from pipelines import ImageTable, find_bad_images

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
class Audit:
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


def find(images: AuditedImages, options: AuditOptions) -> Audit:
    """Audit images.

    Takes O(n²·d) time for up to 200,000 images. In addition to the embeddings, it needs memory for
    n·k numbers and 1,024 bytes for each image.
    """
    neighbors, similarities = _neighbors(images.embeddings)
    votes = audit.label_votes(images.labels, neighbors)
    scores = audit.outlier_scores(similarities)
    outliers = np.flatnonzero(scores >= OUTLIER_SCORE)
    return Audit(
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


def lines_of(findings: Audit) -> dict[str, list[dict[str, Any]]]:
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


@dataclasses.dataclass(frozen=True)
class AuditedImages:
    """All sets, concatenated.

    Attributes:
        sets: "train", "test", and "gallery", or "" for a single set -> its images. The labels have
            the same meaning in every set.
        embeddings: Finite float32 `[n, d]`.
        labels: Class numbers, int64 `[n]`.
        class_names: Names of the classes.
    """

    sets: Mapping[str, EmbeddedSet]
    embeddings: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    @functools.cached_property
    def _starts(self) -> npt.NDArray[np.int64]:
        """The first row of each set, and the number of rows, `[sets + 1]`."""
        return np.cumsum([0, *(len(each.labels) for each in self.sets.values())])

    @property
    def tables(self) -> list[tuple[int, ImageTable]]:
        """The first row and the images of each set whose images are available."""
        pairs = zip(self._starts.tolist(), self.sets.values())
        return [(start, each.table) for start, each in pairs if each.table is not None]

    def set_numbers(self, rows: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the index in `sets` of each row's set, `[r]`."""
        return np.searchsorted(self._starts, rows, "right") - 1

    def place(self, row: int) -> tuple[str, ImageTable | None, int]:
        """Return the name and the images of a row's set, and its row number in the set."""
        number = int(self.set_numbers(row))
        name = list(self.sets)[number]
        return name, self.sets[name].table, int(row - self._starts[number])

    def name(self, row: int) -> str:
        """Return the name of a row's image: its path, or its number in its set."""
        of_set, table, number = self.place(row)
        if table is not None and table.paths is not None:
            return str(table.paths[number])
        return f"{of_set} image {number}".lstrip()

    def class_name(self, row: int) -> str:
        """Return the name of a row's class."""
        return self.class_names[self.labels[row]]


def audited_images(sets: Mapping[str, EmbeddedSet]) -> AuditedImages:
    """Concatenate sets of one model's embeddings.

    Args:
        sets: The sets, the training images first. The labels are the names of the classes.

    Raises:
        UsageError: The sets have no image, or the embeddings have several widths.
        ArgumentError: An embedding is not finite, or the labels have several types.
    """
    rows = [finite_rows(each.embeddings, f"{name} embeddings".lstrip())
            for name, each in sets.items()]  # fmt: skip
    widths = {each.shape[1] for each in rows}
    if len(widths) > 1 or not sum(map(len, rows)):
        shapes = ", ".join(f"{name} {part.shape}" for name, part in zip(sets, rows))
        raise UsageError(
            f"The sets must have an image and embeddings of one width, but got {shapes}."
        )
    labels = joined_labels((f"{name} labels".lstrip(), each.labels) for name, each in sets.items())
    classes, codes = np.unique(labels, return_inverse=True)
    return AuditedImages(sets, np.concatenate(rows), codes, tuple(map(str, classes)))


def images_of_file(path: str | os.PathLike[str]) -> AuditedImages:
    """Return the sets in a `.npz` file of embeddings, without its catalog.

    Raises:
        ValueError: As `embeddings_from_file` and `audited_images`.
    """
    found = dict(embeddings_from_file(path, training=True).sets)
    names = {"train": "training", "test": "queries", "gallery": "gallery"}
    sets = {name: found[key] for name, key in names.items() if key in found}
    return audited_images({"": sets["test"]} if len(sets) == 1 else sets)


_BATCH = 64


class Duplicates(NamedTuple):
    """All pairs of duplicates, and the groups that they connect.

    Attributes:
        pairs: Rows of both images, the lower one first, `[p, 2]`. The highest score is first.
        scores: Correlation of both pictures, or without pictures the similarity of the embeddings,
            `[p]`.
        groups: The lowest row of each row's group, int64 `[n]`.
        unreadable: Row -> why its picture cannot be read.
    """

    pairs: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64]
    groups: npt.NDArray[np.int64]
    unreadable: dict[int, str]

    def larger_groups(self) -> list[npt.NDArray[np.int64]]:
        """Return the rows of each group of two or more, in the order of `pairs`."""
        members = np.unique(self.pairs)
        ordered = members[np.argsort(self.groups[members], kind="stable")]
        starts = np.flatnonzero(np.diff(self.groups[ordered])) + 1
        rows_of = {int(rows[0]): rows for rows in np.split(ordered, starts) if len(rows)}
        return [rows_of[first] for first in dict.fromkeys(self.groups[self.pairs[:, 0]].tolist())]


def find_duplicates(
    images: AuditedImages,
    neighbors: npt.NDArray[np.int64],
    similarities: npt.NDArray[np.float32],
    options: AuditOptions,
) -> Duplicates:
    """Return the duplicates among images and their neighbors.

    If both pictures are available, they decide, because the embeddings of two photographs of one
    thing may be as near as the embeddings of one. If not, the embeddings decide.

    Args:
        images: The audited images.
        neighbors: Row numbers `[n, k]`, the nearest first.
        similarities: Cosine similarities `[n, k]`.
        options: The least correlation and similarity of duplicates, and the largest image.
    """
    pairs, places = upper_pairs(neighbors)
    nearness = similarities.ravel()[places].astype(np.float64)
    small, there, unreadable = _small_pictures(images, options.max_pixels)
    by_picture = there[pairs[:, 0]] & there[pairs[:, 1]]
    scores = nearness.copy()
    scores[by_picture] = picture_correlations(small, pairs[by_picture])
    least = np.where(by_picture, options.correlation, options.similarity)
    order = np.lexsort((-nearness, -scores))
    order = order[scores[order] >= least[order]]
    groups = duplicate_groups(pairs[order], len(images))
    return Duplicates(pairs[order], scores[order], groups, unreadable)


def _small_pictures(
    images: AuditedImages, max_pixels: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_], dict[int, str]]:
    """Return gray pictures `[n, SIDE, SIDE]`, the rows that have one, and why others lack one."""
    there, unreadable = np.zeros(len(images), bool), dict[int, str]()
    small = np.zeros((len(images) if images.tables else 0, SIDE, SIDE), np.uint8)

    def read(table: ImageTable, rows: np.ndarray) -> None:
        gray = raw_pixels(table, _BATCH, "reading pictures", max_pixels)
        small[rows] = gray.round().clip(0, 255).reshape(-1, SIDE, SIDE)
        there[rows] = True

    for start, table in images.tables:
        rows = np.arange(len(table))
        try:
            read(table, start + rows)
        except tf.errors.OpError:  # to look for bad images takes as long again
            bad = find_bad_images(table, max_pixels=max_pixels)
            unreadable |= {start + row: reason for row, _, reason in bad}
            rows = np.setdiff1d(rows, [row for row, _, _ in bad])
            if len(rows):
                read(table.select(rows), start + rows)
    return small, there, unreadable


# Height and width of the compared pictures, and of the smallest cut: 84 % of a side.
SIDE, _SMALLEST_CUT = 32, 27
_SIZES = range(_SMALLEST_CUT, SIDE + 1)
# All pairs are compared at this size first, and those below this correlation are not examined. The
# lowest correlation of planted copies that were cut by 9 % was 0.82.
_COARSE, _WORTH_A_LOOK = 8, 0.75
# Pairs in a block.
_PAIRS = 2**12


def picture_correlations(
    pictures: npt.NDArray[np.uint8], pairs: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    """Return the correlations of pairs, with a progress bar.

    The correlation is Pearson's, of the gray levels of two pictures with `SIDE`² pixels. It is the
    highest value over: the pictures unchanged, one of them mirrored, and one of them with a cut of
    the other of at least 84 % of its sides, at any position. Pairs that differ at 8 × 8 pixels have
    the correlation at this size. A picture of one gray level has the correlation 0.

    Args:
        pictures: uint8 `[n, SIDE, SIDE]`.
        pairs: Row numbers `[p, 2]`.

    Returns:
        float32 `[p]` in [-1, 1].
    """
    found = np.zeros(len(pairs), np.float32)
    if not len(pairs):
        return found
    small = pictures.reshape(len(pictures), _COARSE, SIDE // _COARSE, _COARSE, SIDE // _COARSE)
    coarse = small.mean((2, 4), dtype=np.float32)
    straight, mirrored = _unit(coarse), _unit(coarse[:, :, ::-1])

    with Bar("comparing pictures", total=len(pairs)) as bar:
        for start in range(0, len(pairs), _PAIRS):
            first, second = pairs[start : start + _PAIRS].T
            as_is = np.einsum("pd,pd->p", straight[first], straight[second])
            turned = np.einsum("pd,pd->p", straight[first], mirrored[second])
            block = found[start : start + _PAIRS]
            block[:] = np.maximum(as_is, turned)
            for place in np.flatnonzero(block >= _WORTH_A_LOOK):
                one, other = pictures[first[place]], pictures[second[place]]
                looks = (other, as_is[place]), (other[:, ::-1], turned[place])
                # Try both for a picture that is nearly symmetric.
                block[place] = max(
                    best_cut(one, look) for look, score in looks if score >= block[place] - 0.1
                )
            bar.update(len(block))
    return found


def best_cut(one: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8]) -> float:
    """Return the highest correlation of one picture with a cut of the other."""
    return max(_best_cut_of(other, one), _best_cut_of(one, other))


def _best_cut_of(picture: npt.NDArray[np.uint8], whole: npt.NDArray[np.uint8]) -> float:
    """Return the highest correlation of a whole picture with the cuts of another one."""
    image = Image.fromarray(np.ascontiguousarray(whole))
    best = -1.0
    for size in _SIZES:
        resized = np.asarray(image.resize((size, size), Image.Resampling.BOX))
        cuts = np.lib.stride_tricks.sliding_window_view(picture, (size, size))
        found = _unit(cuts.reshape(-1, size, size)) @ _unit(resized[None])[0]
        best = max(best, float(found.max()))
    return best


def _unit(pictures: np.ndarray) -> npt.NDArray[np.float32]:
    """Return pictures `[n, …]` as vectors of mean 0 and norm 1; zeros for a single gray level."""
    rows = pictures.reshape(len(pictures), -1).astype(np.float32)
    rows -= rows.mean(axis=1, keepdims=True)
    lengths = np.sqrt(np.einsum("nd,nd->n", rows, rows))[:, None]
    return np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 1e-3)


def upper_pairs(neighbors: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], np.ndarray]:
    """Return the pairs (i, j), i < j, of rows and their neighbors, each once.

    Args:
        neighbors: Row numbers `[n, k]`.

    Returns:
        `(pairs [p, 2], places [p])`: sorted pairs, and their first index in `neighbors.ravel()`.
    """
    count, k = neighbors.shape
    own = np.repeat(np.arange(count), k)
    others = neighbors.ravel()
    keys, places = np.unique(
        np.minimum(own, others) * max(1, count) + np.maximum(own, others), return_index=True
    )
    return np.stack([keys // max(1, count), keys % max(1, count)], axis=1), places
