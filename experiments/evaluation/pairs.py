"""Cosine similarities and distances of matching and of other pairs, as histograms.

The classes here hold the numbers of a figure. `experiments.pages.figures` draws them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keras_dml._common.rows import normalized, row_blocks
from keras_dml.metrics import DistanceHistograms

BINS = 80
# The pairs of more images take long and look the same.
_MOST_IMAGES = 1000
_MOST_IMAGES_OF_DISTANCES = 4000


class Similarities(NamedTuple):
    """Cosine similarities of pairs.

    Attributes:
        matching, other: Number of pairs of one class, and of two classes, in each bin of [-1, 1].
        matching_mean, other_mean: Means; NaN without such a pair.
    """

    matching: npt.NDArray[np.int64]
    other: npt.NDArray[np.int64]
    matching_mean: float
    other_mean: float


@dataclasses.dataclass(frozen=True)
class SimilarityPanels:
    """A figure with one panel of similarities for each title."""

    panels: Mapping[str, Similarities]


@dataclasses.dataclass(frozen=True)
class DistancePanels:
    """A figure with one panel of distances for each title (Kemertas et al. 2020, figure 1)."""

    panels: Mapping[str, DistanceHistograms]


@dataclasses.dataclass(frozen=True)
class PairCosts:
    """A figure of the cost of a pair by its distance (Kemertas et al. 2020, figure 3).

    Attributes:
        values: V at equal steps of the distance from 0 to 2.
        beta: Distance at which both costs are equal.
        alpha: Margin on each side of beta.
    """

    values: np.ndarray
    beta: float
    alpha: float


@dataclasses.dataclass(frozen=True)
class LogCurve:
    """A figure of one value of `metrics.jsonl` over epochs."""

    name: str
    history: Sequence[Mapping[str, float]]
    key: str
    label: str


def rows_of_some_classes(
    labels: np.ndarray, most: int = _MOST_IMAGES_OF_DISTANCES
) -> npt.NDArray[np.int64]:
    """Return the rows of random whole classes: at most `most` rows, but at least two classes."""
    classes, sizes = np.unique(labels, return_counts=True)
    order = np.random.default_rng(0).permutation(len(classes))
    fits = np.cumsum(sizes[order]) <= max(most, sizes[order[:2]].sum())
    return np.flatnonzero(np.isin(labels, classes[order[fits]]))


def pair_rows(
    labels: np.ndarray, gallery_labels: np.ndarray | None = None
) -> list[npt.NDArray[np.int64]]:
    """Return the rows of the images whose pairs are counted, and the rows of their gallery.

    The rows are whole classes if possible, and the same for the same labels.

    Returns:
        One array, or two with a gallery.
    """
    rows = _some(rows_of_some_classes(labels, _MOST_IMAGES))
    if gallery_labels is None:
        return [rows]
    return [rows, _some(np.flatnonzero(np.isin(gallery_labels, labels[rows])))]


def _some(rows: np.ndarray) -> npt.NDArray[np.int64]:
    if len(rows) > _MOST_IMAGES:
        rows = np.sort(np.random.default_rng(0).choice(rows, _MOST_IMAGES, replace=False))
    return rows.astype(np.int64)


def similarities(
    embeddings: np.ndarray,
    labels: np.ndarray,
    gallery: np.ndarray | None = None,
    gallery_labels: np.ndarray | None = None,
) -> Similarities:
    """Return the similarities of all pairs of a set, or of the pairs of a set and a gallery.

    Args:
        embeddings, labels: `[n, d]` and `[n]`.
        gallery, gallery_labels: `[m, d]` and `[m]`.
    """
    queries = normalized(np.asarray(embeddings, np.float32))
    items = queries if gallery is None else normalized(np.asarray(gallery, np.float32))
    classes = labels if gallery_labels is None else gallery_labels
    counts = np.zeros([2, BINS], np.int64)
    sums = np.zeros(2)
    for block in row_blocks(queries, len(items)):
        found = np.clip(queries[block] @ items.T, -1, 1)
        matches = labels[block, None] == classes[None, :]
        counted = np.ones_like(matches)
        if gallery is None:  # each pair once, without the pairs of an image with itself
            counted = np.arange(len(queries))[block, None] < np.arange(len(items))[None, :]
        for kind, pairs in enumerate((found[matches & counted], found[~matches & counted])):
            counts[kind] += np.histogram(pairs, BINS, (-1, 1))[0]
            sums[kind] += pairs.sum(dtype=np.float64)
    totals = counts.sum(axis=1)
    means = [float(total / count) if count else np.nan for total, count in zip(sums, totals)]
    return Similarities(counts[0], counts[1], *means)
