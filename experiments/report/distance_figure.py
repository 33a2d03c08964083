"""The distances of positive and of negative pairs as histograms: RankMI's figure 1."""

import numpy as np

from experiments.report.figures import BLUE, ORANGE, legend, svg

BINS = 80
# Images whose pairs are counted: all pairs of more would take long and look the same.
_MOST_IMAGES = 4000


def rows_of_some_classes(labels):
    """Rows of whole classes, as many as fit, spread over all classes."""
    classes, sizes = np.unique(labels, return_counts=True)
    order = np.random.default_rng(0).permutation(len(classes))
    fits = np.cumsum(sizes[order]) <= max(_MOST_IMAGES, sizes[order[:2]].sum())
    return np.flatnonzero(np.isin(labels, classes[order[fits]]))


def distances_svg(panels):
    """Histograms one below the other, those of positive and of negative pairs in one panel.

    Args:
        panels: dict, title -> `keras_dml.metrics.DistanceHistograms`.

    Returns:
        str, one `<svg>` element.
    """
    parts = [
        f"{title}: divergence {found.divergence():.3f} nats" for title, found in panels.items()
    ]

    def draw(figure):
        rows = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
        for axes, (title, found) in zip(rows, panels.items()):
            for counts, colour, name in (
                (found.positive, BLUE, "positive pairs"),
                (found.negative, ORANGE, "negative pairs"),
            ):
                density = counts / max(counts.sum(), 1) * len(counts) / 2
                axes.stairs(density, found.edges, fill=True, alpha=0.35, color=colour)
                axes.stairs(density, found.edges, color=colour, label=name)
            axes.set_title(title, loc="right", fontsize="small", pad=2)
            axes.set_yticks([])
        rows[-1].set_xlabel("distance")
        legend(rows[0])

    return svg("distances", draw, parts)
