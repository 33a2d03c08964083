"""Duplicates: the same file, the same pixels, or nearly the same picture."""

from __future__ import annotations

import filecmp
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from experiments.evaluation.audited_images import AuditedImages
from experiments.evaluation.picture_correlation import SIDE, picture_correlations, upper_pairs
from experiments.evaluation.pictures import whole_picture
from experiments.evaluation.table_embedder import raw_pixels
from keras_dml.metrics.audit import duplicate_groups
from pipelines import ImageTable, find_bad_images

SAME_FILE, SAME_PIXELS, NEAR = "same file", "same pixels", "near-duplicate"
_KINDS = (SAME_FILE, SAME_PIXELS, NEAR)
_BATCH = 64


class Thresholds(NamedTuple):
    """The limits of a duplicate, and of an image file.

    Attributes:
        correlation: Least correlation of the same picture, as from `picture_correlations`.
        similarity: Least similarity of two embeddings of the same image without a picture.
        max_pixels: Largest number of pixels of an image.
    """

    correlation: float
    similarity: float
    max_pixels: int


class DuplicatePair(NamedTuple):
    """Two images that are the same.

    Attributes:
        kind: `SAME_FILE`, `SAME_PIXELS`, or `NEAR`.
        first, second: Their rows, the lower one first.
        similarity: Cosine similarity of their embeddings.
        correlation: Correlation of their pictures, if they are available.
    """

    kind: str
    first: int
    second: int
    similarity: float
    correlation: float | None

    @property
    def score(self) -> float:
        """The correlation, or without pictures the similarity."""
        return self.similarity if self.correlation is None else self.correlation


class Duplicates(NamedTuple):
    """All pairs, and the groups that they connect.

    Attributes:
        pairs: Pairs of the same file, then of the same pixels, then the others by correlation.
        groups: The lowest row of each row's group, int64 `[n]`.
        unreadable: Row -> why its picture cannot be read.
    """

    pairs: list[DuplicatePair]
    groups: npt.NDArray[np.int64]
    unreadable: dict[int, str]

    def larger_groups(self) -> list[npt.NDArray[np.int64]]:
        """Return the rows of each group of two or more, in the order of `pairs`."""
        members = np.unique([(pair.first, pair.second) for pair in self.pairs]).astype(np.int64)
        ordered = members[np.argsort(self.groups[members], kind="stable")]
        starts = np.flatnonzero(np.diff(self.groups[ordered])) + 1
        rows_of = {int(rows[0]): rows for rows in np.split(ordered, starts) if len(rows)}
        return [
            rows_of[first] for first in dict.fromkeys(int(self.groups[p.first]) for p in self.pairs)
        ]


def find_duplicates(
    images: AuditedImages,
    neighbors: npt.NDArray[np.int64],
    similarities: npt.NDArray[np.float32],
    thresholds: Thresholds,
) -> Duplicates:
    """Return the duplicates among images and their neighbors.

    If both pictures are available, they decide, because the embeddings of two photographs of one
    thing may be as near as the embeddings of one. If not, the embeddings decide.

    Args:
        images: The audited images.
        neighbors: Row numbers `[n, k]`, the nearest first.
        similarities: Cosine similarities `[n, k]`.
        thresholds: The least correlation and similarity of duplicates.
    """
    pairs, places = upper_pairs(neighbors)
    nearness = similarities.ravel()[places]
    small, there, unreadable = _small_pictures(images, thresholds.max_pixels)
    by_picture = there[pairs[:, 0]] & there[pairs[:, 1]]
    correlations = np.full(len(pairs), np.nan)
    correlations[by_picture] = picture_correlations(small, pairs[by_picture])
    same = np.where(
        by_picture, correlations >= thresholds.correlation, nearness >= thresholds.similarity
    )
    found = []
    for place in np.flatnonzero(same).tolist():
        first, second = pairs[place].tolist()
        kind, correlation = NEAR, None
        if by_picture[place]:
            correlation = float(correlations[place])
            if np.array_equal(small[first], small[second]):
                kind = _kind(images, first, second, thresholds.max_pixels)
        found.append(DuplicatePair(kind, first, second, float(nearness[place]), correlation))
    ordered = sorted(
        found,
        key=lambda pair: (
            _KINDS.index(pair.kind),
            -(1.0 if pair.correlation is None else pair.correlation),
            -pair.similarity,
            pair.first,
            pair.second,
        ),
    )
    edges = np.array([(pair.first, pair.second) for pair in ordered], np.int64).reshape(-1, 2)
    return Duplicates(ordered, duplicate_groups(edges, len(images)), unreadable)


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


def _kind(images: AuditedImages, first: int, second: int, max_pixels: int) -> str:
    """Compare the files of two images that look the same, and return the kind of the pair."""
    places = [images.place(row) for row in (first, second)]
    paths = [str(table.paths[number])
             for _, table, number in places if table and table.paths is not None]  # fmt: skip
    if len(paths) < 2:
        return NEAR
    one, other = paths
    try:
        if filecmp.cmp(one, other, shallow=False):
            return SAME_FILE
        same = np.array_equal(whole_picture(one, max_pixels), whole_picture(other, max_pixels))
    except (OSError, ValueError):  # changed since the pictures were read
        same = False
    return SAME_PIXELS if same else NEAR
