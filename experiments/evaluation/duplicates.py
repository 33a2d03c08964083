"""Duplicates: pictures that are nearly the same."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from experiments.evaluation.audit_options import AuditOptions
from experiments.evaluation.audited_images import AuditedImages
from experiments.evaluation.picture_correlation import SIDE, picture_correlations, upper_pairs
from experiments.evaluation.table_embedder import raw_pixels
from keras_dml.metrics.audit import duplicate_groups
from pipelines import ImageTable, find_bad_images

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
