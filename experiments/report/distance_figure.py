"""The distances of positive and of negative pairs as histograms: RankMI's figure 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from experiments.report.figures import BLUE, ORANGE, legend, svg
from keras_dml.metrics import DistanceHistograms

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 80
# Images whose pairs are counted: all pairs of more would take long and look the same.
_MOST_IMAGES = 4000


def rows_of_some_classes(labels: np.ndarray, most: int = _MOST_IMAGES) -> np.ndarray:
    """Rows of whole classes, as many as fit into `most`, two at least, spread over all classes."""
    classes, sizes = np.unique(labels, return_counts=True)
    order = np.random.default_rng(0).permutation(len(classes))
    fits = np.cumsum(sizes[order]) <= max(most, sizes[order[:2]].sum())
    return np.flatnonzero(np.isin(labels, classes[order[fits]]))


def distances_svg(panels: Mapping[str, DistanceHistograms]) -> str:
    """Histograms one below the other, those of positive and of negative pairs in one panel.

    Args:
        panels: dict, title -> `keras_dml.metrics.DistanceHistograms`.

    Returns:
        str, one `<svg>` element.
    """
    parts = [
        f"{title}: divergence {panel.divergence():.3f} nats" for title, panel in panels.items()
    ]

    def draw(figure: Figure) -> None:
        rows = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
        for axes, (title, panel) in zip(rows, panels.items()):
            for counts, color, name in (
                (panel.positive, BLUE, "positive pairs"),
                (panel.negative, ORANGE, "negative pairs"),
            ):
                density = counts / max(counts.sum(), 1) * len(counts) / 2
                axes.stairs(density, panel.edges, fill=True, alpha=0.35, color=color)
                axes.stairs(density, panel.edges, color=color, label=name)
            axes.set_title(title, loc="right", fontsize="small", pad=2)
            axes.set_yticks([])
        rows[-1].set_xlabel("distance")
        legend(rows[0])

    return svg("distances", draw, parts)
