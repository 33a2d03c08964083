"""Images that are there several times: the same file, the same pixels, nearly the same picture."""

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
from keras_dml.metrics.audit import duplicate_groups
from pipelines import EvaluationTransform, ImageTable, evaluation_batches, find_bad_images
from pipelines.images.limits import MOST_PIXELS

SAME_FILE, SAME_PIXELS, NEAR = "same file", "same pixels", "near-duplicate"
_BATCH = 64


class DuplicatePair(NamedTuple):
    """Two images that are one.

    Attributes:
        kind: `SAME_FILE`, `SAME_PIXELS` or `NEAR`.
        first, second: their rows, the lower one first.
        similarity: cosine similarity of their embeddings.
        correlation: of their pictures; None where these are not at hand.
    """

    kind: str
    first: int
    second: int
    similarity: float
    correlation: float | None


class Duplicates(NamedTuple):
    """All pairs, and what hangs together by them.

    Attributes:
        pairs: those of the same file first, then the same pixels, then the most alike.
        groups: int64 `[n]`, for each row the lowest row of its group.
        unreadable: row -> why its picture could not be compared.
    """

    pairs: list[DuplicatePair]
    groups: npt.NDArray[np.int64]
    unreadable: dict[int, str]

    def larger_groups(self) -> list[npt.NDArray[np.int64]]:
        """The rows of each group of two or more, in the order of `pairs`."""
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
    max_pixels: int = MOST_PIXELS,
) -> Duplicates:
    """The duplicates among images and their neighbors, and all files of the same bytes.

    Where both pictures are at hand these decide: model and training say how near two photographs
    of one thing lie, but not whether they are one photograph. Elsewhere the embeddings do.

    Args:
        images: what is audited.
        neighbors: row numbers `[n, k]`, nearest first.
        similarities: cosine similarities `[n, k]`.
        correlation: of two pictures (`picture_correlations`) from which they are one.
        similarity: of two embeddings from which they are one, where a picture is missing.
        max_pixels: how many pixels an image may have that is opened.
    """
    found: dict[tuple[int, int], DuplicatePair] = {}
    pairs, places = upper_pairs(neighbors)
    nearness = similarities.ravel()[places]
    small, there, unreadable = _small_pictures(images, max_pixels)
    both = there[pairs].all(axis=1)
    for place in np.flatnonzero(~both & (nearness >= similarity)).tolist():
        first, second = pairs[place].tolist()
        _add(found, DuplicatePair(NEAR, first, second, float(nearness[place]), None))
    pairs, nearness = pairs[both], nearness[both]
    for place, value in _correlated(small, pairs, correlation):
        first, second = pairs[place].tolist()
        same = np.array_equal(small[first], small[second]) and _same_pixels(
            images, first, second, max_pixels
        )
        kind = SAME_PIXELS if same else NEAR
        _add(found, DuplicatePair(kind, first, second, float(nearness[place]), value))
    for first, second in _same_files(images):
        if (first, second) in found:
            found[first, second] = found[first, second]._replace(kind=SAME_FILE)
        else:
            vectors = images.embeddings[[first, second]].astype(np.float64)
            lengths = np.sqrt((vectors**2).sum(axis=1)).prod()
            cosine = float(vectors[0] @ vectors[1] / lengths) if lengths else 0.0
            _add(found, DuplicatePair(SAME_FILE, first, second, cosine, None))
    kinds = (SAME_FILE, SAME_PIXELS, NEAR)
    ordered = sorted(
        found.values(),
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


def _add(found: dict[tuple[int, int], DuplicatePair], pair: DuplicatePair) -> None:
    found[pair.first, pair.second] = pair


def _correlated(
    small: npt.NDArray[np.uint8], pairs: npt.NDArray[np.int64], least: float
) -> Iterator[tuple[int, float]]:
    """(place in `pairs`, correlation) of those that are alike enough."""
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
    """Grey pictures uint8 `[n, SIDE, SIDE]`, whether there is one, and why some are not."""
    there, unreadable = np.zeros(len(images), bool), dict[int, str]()
    if not images.has_pictures:
        return np.zeros((0, SIDE, SIDE), np.uint8), there, unreadable
    small = np.zeros((len(images), SIDE, SIDE), np.uint8)
    for start, each in zip(images.starts, images.sets):
        if each.table is None:
            continue
        rows = np.arange(len(each.table))
        try:
            _read_small(small, start + rows, each.table, max_pixels)
        except tf.errors.OpError:  # looked through only then: it takes as long again
            bad = find_bad_images(each.table, max_pixels=max_pixels)
            unreadable |= {int(start) + row: reason for row, _, reason in bad}
            rows = np.setdiff1d(rows, [row for row, _, _ in bad])
            if len(rows):
                _read_small(small, start + rows, each.table.select(rows), max_pixels)
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
    """Whether two images are the same pixel for pixel; the whole of each is decoded for that."""
    pixels = []
    for row in (first, second):
        each, number = images.place(row)
        table = each.table
        if table is None or table.paths is None:
            return False
        try:
            pixels.append(whole_picture(str(table.paths[number]), max_pixels))
        except (OSError, ValueError):
            return False
    return np.array_equal(pixels[0], pixels[1])


def _same_files(images: AuditedImages) -> Iterator[tuple[int, int]]:
    """The rows of files with the same bytes, each with the first of them; a path twice counts."""
    by_size = collections.defaultdict(list)
    for start, each in zip(images.starts.tolist(), images.sets):
        if each.table is None or each.table.paths is None:
            continue
        for number, path in enumerate(each.table.paths):
            try:
                status = os.stat(path)
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):  # to read a pipe may never end
                by_size[status.st_size].append((start + number, path))
    # Only files of one size can be the same: the others need not be read.
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
