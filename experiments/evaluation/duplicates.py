"""Duplicates: the same file, the same pixels, or nearly the same picture."""

from __future__ import annotations

import collections
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from experiments.evaluation.audited_images import AuditedImages
from experiments.evaluation.fingerprint import file_sha256
from experiments.evaluation.picture_correlation import SIDE, picture_correlations, upper_pairs
from experiments.evaluation.pictures import whole_picture
from experiments.options.progress import progress_bar
from keras_dml._common.rows import normalized
from keras_dml.metrics.audit import duplicate_groups
from pipelines import EvaluationTransform, ImageTable, evaluation_batches, find_bad_images

SAME_FILE, SAME_PIXELS, NEAR = "same file", "same pixels", "near-duplicate"
_BATCH = 64


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
    correlation: float,
    similarity: float,
    max_pixels: int,
) -> Duplicates:
    """Return the duplicates among images and their neighbors, and all files with the same bytes.

    If both pictures are available, they decide, because the embeddings of two photographs of one
    thing may be as near as the embeddings of one. If not, the embeddings decide.

    Args:
        images: The audited images.
        neighbors: Row numbers `[n, k]`, the nearest first.
        similarities: Cosine similarities `[n, k]`.
        correlation: Least correlation of the same picture, as from `picture_correlations`.
        similarity: Least similarity of two embeddings of the same image without a picture.
        max_pixels: Largest number of pixels of an image.
    """
    pairs, places = upper_pairs(neighbors)
    nearness = similarities.ravel()[places]
    small, there, unreadable = _small_pictures(images, max_pixels)
    both = there[pairs].all(axis=1)
    found = []
    for place in np.flatnonzero(~both & (nearness >= similarity)).tolist():
        first, second = pairs[place].tolist()
        found.append(DuplicatePair(NEAR, first, second, float(nearness[place]), None))
    pairs, nearness = pairs[both], nearness[both]
    for place, value in _correlated(small, pairs, correlation):
        first, second = pairs[place].tolist()
        same = np.array_equal(small[first], small[second]) and _same_pixels(
            images, first, second, max_pixels
        )
        kind = SAME_PIXELS if same else NEAR
        found.append(DuplicatePair(kind, first, second, float(nearness[place]), value))
    by_rows = {(pair.first, pair.second): pair for pair in found}
    for first, second in _same_files(images):
        if (first, second) not in by_rows:
            vectors = normalized(images.embeddings[[first, second]])
            cosine = float(vectors[0] @ vectors[1])
            by_rows[first, second] = DuplicatePair(SAME_FILE, first, second, cosine, None)
        by_rows[first, second] = by_rows[first, second]._replace(kind=SAME_FILE)
    kinds = (SAME_FILE, SAME_PIXELS, NEAR)
    ordered = sorted(
        by_rows.values(),
        key=lambda pair: (
            kinds.index(pair.kind),
            -(1.0 if pair.correlation is None else pair.correlation),
            -pair.similarity,
            pair.first,
            pair.second,
        ),
    )
    edges = np.array([(pair.first, pair.second) for pair in ordered], np.int64).reshape(-1, 2)
    return Duplicates(ordered, duplicate_groups(edges, len(images)), unreadable)


def _correlated(
    small: npt.NDArray[np.uint8], pairs: npt.NDArray[np.int64], least: float
) -> Iterator[tuple[int, float]]:
    """Yield (index in `pairs`, correlation) of the pairs above `least`."""
    start = 0
    if not len(pairs):
        return
    with progress_bar("comparing pictures", total=len(pairs)) as bar:
        for block in picture_correlations(small, pairs):
            for place in np.flatnonzero(block >= least):
                yield start + int(place), float(block[place])
            start += len(block)
            bar.update(len(block))


def _small_pictures(
    images: AuditedImages, max_pixels: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_], dict[int, str]]:
    """Return gray pictures `[n, SIDE, SIDE]`, the rows that have one, and why others lack one."""
    there, unreadable = np.zeros(len(images), bool), dict[int, str]()
    if not images.tables:
        return np.zeros((0, SIDE, SIDE), np.uint8), there, unreadable
    small = np.zeros((len(images), SIDE, SIDE), np.uint8)
    for start, table in images.tables:
        rows = np.arange(len(table))
        try:
            _read_small(small, start + rows, table, max_pixels)
        except tf.errors.OpError:  # to look for bad images takes as long again
            bad = find_bad_images(table, max_pixels=max_pixels)
            unreadable |= {start + row: reason for row, _, reason in bad}
            rows = np.setdiff1d(rows, [row for row, _, _ in bad])
            if len(rows):
                _read_small(small, start + rows, table.select(rows), max_pixels)
        there[start + rows] = True
    return small, there, unreadable


def _read_small(
    small: npt.NDArray[np.uint8], rows: np.ndarray, table: ImageTable, max_pixels: int
) -> None:
    transform = EvaluationTransform(SIDE, (SIDE, SIDE), max_pixels)
    done = 0
    with progress_bar("reading pictures", total=len(table)) as bar:
        for batch in evaluation_batches(table, transform, _BATCH):
            gray = tf.image.rgb_to_grayscale(batch)[..., 0].numpy()
            small[rows[done : done + len(gray)]] = gray.round().clip(0, 255)
            done += len(gray)
            bar.update(len(gray))


def _same_pixels(images: AuditedImages, first: int, second: int, max_pixels: int) -> bool:
    """Decode two images, and return whether they have the same pixels."""
    pixels = []
    for row in (first, second):
        _, table, number = images.place(row)
        if table is None or table.paths is None:
            return False
        try:
            pixels.append(whole_picture(str(table.paths[number]), max_pixels))
        except (OSError, ValueError):
            return False
    return np.array_equal(pixels[0], pixels[1])


def _same_files(images: AuditedImages) -> Iterator[tuple[int, int]]:
    """Yield the first row and another row of files with the same bytes."""
    by_size = collections.defaultdict(list)
    for start, table in images.tables:
        for number, path in enumerate(() if table.paths is None else table.paths):
            try:
                status = os.stat(path)
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):  # a pipe may never end
                by_size[status.st_size].append((start + number, path))
    # Read only files with a size that occurs more than once.
    several = [rows for rows in by_size.values() if len(rows) > 1]
    if not several:
        return
    with progress_bar("comparing files", total=sum(map(len, several))) as bar:
        for rows in several:
            first_of: dict[str, int] = {}
            for row, path in rows:
                bar.update()
                try:
                    digest = file_sha256(path)
                except OSError:
                    continue
                if first_of.setdefault(digest, row) != row:
                    yield first_of[digest], row
