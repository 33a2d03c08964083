"""Cosine similarities of matching and of other pairs as histograms: what a search tells apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from experiments.report.distance_figure import rows_of_some_classes
from experiments.report.figures import BLUE, ORANGE, svg
from keras_dml._common.rows import normalized, row_blocks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Similarities", "pair_rows", "similarities", "similarities_svg"]

_BINS = 80
# Images of a side whose pairs are counted: all pairs of more would take long and look the same.
_MOST_IMAGES = 1000


class Similarities(NamedTuple):
    """Cosine similarities of pairs.

    Attributes:
        matching, other: how many pairs of one class, and of two, are in each bin, from -1 to 1.
        matching_mean, other_mean: NaN where there is no such pair.
    """

    matching: npt.NDArray[np.int64]
    other: npt.NDArray[np.int64]
    matching_mean: float
    other_mean: float


def pair_rows(
    labels: np.ndarray, gallery_labels: np.ndarray | None = None
) -> list[npt.NDArray[np.int64]]:
    """Rows of the images whose pairs are shown, and of the gallery's of their classes.

    Whole classes as far as they fit; always the same for the same labels.

    Returns:
        One array, or two where there is a gallery.
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
    """Those of all pairs of a set, or of one set with a gallery.

    Args:
        embeddings, labels: `[n, d]` and `[n]`.
        gallery, gallery_labels: `[m, d]` and `[m]`; None: pairs within the set.
    """
    queries = normalized(np.asarray(embeddings, np.float32))
    items = queries if gallery is None else normalized(np.asarray(gallery, np.float32))
    classes = labels if gallery_labels is None else gallery_labels
    counts = np.zeros([2, _BINS], np.int64)
    sums = np.zeros(2)
    for block in row_blocks(queries, len(items)):
        found = np.clip(queries[block] @ items.T, -1, 1)
        matches = labels[block, None] == classes[None, :]
        counted = np.ones_like(matches)
        if gallery is None:  # each pair once, and no image with itself
            counted = np.arange(len(queries))[block, None] < np.arange(len(items))[None, :]
        for kind, pairs in enumerate((found[matches & counted], found[~matches & counted])):
            counts[kind] += np.histogram(pairs, _BINS, (-1, 1))[0]
            sums[kind] += pairs.sum(dtype=np.float64)
    totals = counts.sum(axis=1)
    means = [float(total / count) if count else np.nan for total, count in zip(sums, totals)]
    return Similarities(counts[0], counts[1], *means)


def similarities_svg(panels: Mapping[str, Similarities]) -> str:
    """Histograms one below the other, those of matching and of other pairs in one panel.

    Args:
        panels: title -> `Similarities`, such as before and after a training.

    Returns:
        str, one `<svg>` element; empty where no panel has a pair of either kind.
    """
    panels = {
        title: panel
        for title, panel in panels.items()
        if panel.matching.any() and panel.other.any()
    }
    if not panels:
        return ""
    parts = [
        f"{title}: matching {panel.matching_mean:.2f}, others {panel.other_mean:.2f}"
        for title, panel in panels.items()
    ]
    edges = np.linspace(-1, 1, _BINS + 1)
    held = np.sum([panel.matching + panel.other for panel in panels.values()], axis=0)
    lowest = edges[np.flatnonzero(held)[0]]

    def draw(figure: Figure) -> None:
        rows = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
        for axes, title, panel in zip(rows, parts, panels.values()):
            for counts, color, line, name in (
                (panel.matching, BLUE, "-", "matching pairs"),
                (panel.other, ORANGE, "--", "other pairs"),
            ):
                density = counts / counts.sum() * _BINS / 2
                axes.stairs(density, edges, fill=True, alpha=0.35, color=color)
                axes.stairs(density, edges, color=color, linestyle=line, label=name)
            axes.set_title(title, loc="left", fontsize="medium", pad=4)
            axes.set_xlim(lowest, 1)
            axes.set_yticks([])
        rows[-1].set_xlabel("cosine similarity")
        figure.legend(*rows[0].get_legend_handles_labels(), loc="outside upper left", ncols=2)

    return svg("similarities", draw, parts, height=1.3 + 1.3 * len(panels))
