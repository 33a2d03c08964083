"""Cosine similarities of matching and of other pairs, as histograms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from experiments.evaluation.figures import Histograms
from keras_dml._common.rows import normalized

BINS = 80
# The pairs of more images take long and look the same.
_MOST_IMAGES = 1000
_MOST_IMAGES_OF_DISTANCES = 4000

#: "test", and "gallery" if there is one -> the classes of its images.
Labels: TypeAlias = Mapping[str, np.ndarray]


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

    @property
    def words(self) -> str:
        """Both means as text."""
        return f"matching {self.matching_mean:z.2f}, others {self.other_mean:z.2f}"


def similarity_histograms(panels: Mapping[str, Similarities]) -> Histograms:
    """Return a figure with one panel for each title."""
    shown = {f"{title}: {each.words}": (each.matching, each.other)
             for title, each in panels.items()}  # fmt: skip
    return Histograms(shown, np.linspace(-1, 1, BINS + 1), "cosine similarity")


def rows_of_some_classes(
    labels: np.ndarray, most: int = _MOST_IMAGES_OF_DISTANCES
) -> npt.NDArray[np.int64]:
    """Return the rows of random whole classes: at most `most` rows, but at least two classes."""
    classes, sizes = np.unique(labels, return_counts=True)
    order = np.random.default_rng(0).permutation(len(classes))
    fits = np.cumsum(sizes[order]) <= max(most, sizes[order[:2]].sum())
    return np.flatnonzero(np.isin(labels, classes[order[fits]]))


def pair_rows(labels: Labels) -> dict[str, npt.NDArray[np.int64]]:
    """Return the rows of the images whose pairs are counted, and the rows of their gallery.

    The rows are whole classes if possible, and the same for the same labels.
    """
    rows = {"test": _some(rows_of_some_classes(labels["test"], _MOST_IMAGES))}
    if "gallery" in labels:
        shown = labels["test"][rows["test"]]
        rows["gallery"] = _some(np.flatnonzero(np.isin(labels["gallery"], shown)))
    return rows


def _some(rows: np.ndarray) -> npt.NDArray[np.int64]:
    if len(rows) > _MOST_IMAGES:
        rows = np.sort(np.random.default_rng(0).choice(rows, _MOST_IMAGES, replace=False))
    return rows.astype(np.int64)


def similarities_of_some(
    labels: Labels, embeddings: Callable[[str, np.ndarray], np.ndarray]
) -> Similarities | None:
    """Return the similarities of the pairs of `pair_rows`; None without pairs.

    Args:
        labels: The classes of the images.
        embeddings: (side, rows) -> the embeddings of these rows.
    """
    rows = pair_rows(labels)
    if not all(map(len, rows.values())):
        return None
    arrays: list[np.ndarray] = []
    for side, chosen in rows.items():
        arrays += [embeddings(side, chosen), labels[side][chosen]]
    return similarities(*arrays)


def similarities(
    embeddings: np.ndarray,
    labels: np.ndarray,
    gallery: np.ndarray | None = None,
    gallery_labels: np.ndarray | None = None,
) -> Similarities:
    """Return the similarities of all pairs of a small set, or of a set and a gallery.

    Args:
        embeddings, labels: `[n, d]` and `[n]`.
        gallery, gallery_labels: `[m, d]` and `[m]`.
    """
    queries = normalized(np.asarray(embeddings, np.float32))
    items = queries if gallery is None else normalized(np.asarray(gallery, np.float32))
    found = np.clip(queries @ items.T, -1, 1)
    matches = labels[:, None] == (labels if gallery_labels is None else gallery_labels)
    # Each pair of a set once, without the pairs of an image with itself.
    counted = np.triu(np.ones_like(matches), 1) if gallery is None else np.ones_like(matches)
    kinds = [found[mask & counted].astype(np.float64) for mask in (matches, ~matches)]
    matching, other = (np.histogram(pairs, BINS, (-1, 1))[0] for pairs in kinds)
    means = [float(pairs.mean()) if len(pairs) else np.nan for pairs in kinds]
    return Similarities(matching, other, *means)
