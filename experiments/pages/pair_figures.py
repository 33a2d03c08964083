"""Figures of pairs: histograms of their similarities and distances, and the cost of a pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.evaluation.pairs import (
    BINS,
    DistancePanels,
    LogCurve,
    PairCosts,
    Similarities,
    SimilarityPanels,
)
from experiments.pages.figures import BLUE, INK, ORANGE, legend, lines_svg, svg
from keras_dml.metrics import DistanceHistograms

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def drawn(data: Any) -> str:
    """Return a figure as an `<svg>` element; empty without pairs.

    Args:
        data: Its numbers, a class of `experiments.evaluation.pairs`.
    """
    match data:
        case SimilarityPanels(panels):
            return similarities_svg(panels)
        case DistancePanels(panels):
            return distances_svg(panels)
        case PairCosts():
            return costs_svg(data)
        case LogCurve():
            return lines_svg(data.name, {data.name: data.history}, data.key, label=data.label)
    raise TypeError(f"no figure of {type(data).__name__}")


def similarities_svg(panels: Mapping[str, Similarities]) -> str:
    """Return one histogram of similarities below the other, as an `<svg>` element.

    Args:
        panels: Title -> `Similarities`. A panel without pairs of one kind is left out.
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
    edges = np.linspace(-1, 1, BINS + 1)
    counts = np.sum([panel.matching + panel.other for panel in panels.values()], axis=0)
    lowest = edges[np.flatnonzero(counts)[0]]

    def draw(figure: Figure) -> None:
        rows = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
        for axes, title, panel in zip(rows, parts, panels.values()):
            _histograms(axes, edges, panel.matching, panel.other, ("matching", "other"))
            axes.set_title(title, loc="left", fontsize="medium", pad=4)
            axes.set_xlim(lowest, 1)
        rows[-1].set_xlabel("cosine similarity")
        figure.legend(*rows[0].get_legend_handles_labels(), loc="outside upper left", ncols=2)

    return svg("similarities", draw, parts, height=1.3 + 1.3 * len(panels))


def distances_svg(panels: Mapping[str, DistanceHistograms]) -> str:
    """Return one histogram of distances below the other, as an `<svg>` element.

    Args:
        panels: Title -> `keras_dml.metrics.DistanceHistograms`.
    """
    parts = [
        f"{title}: divergence {panel.divergence():.3f} nats" for title, panel in panels.items()
    ]

    def draw(figure: Figure) -> None:
        rows = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
        for axes, (title, panel) in zip(rows, panels.items()):
            names = ("positive", "negative")
            _histograms(axes, panel.edges, panel.positive, panel.negative, names)
            axes.set_title(title, loc="right", fontsize="small", pad=2)
        rows[-1].set_xlabel("distance")
        legend(rows[0])

    return svg("distances", draw, parts)


def _histograms(
    axes: Axes, edges: np.ndarray, first: np.ndarray, second: np.ndarray, names: Sequence[str]
) -> None:
    """Draw the densities of two kinds of pairs."""
    for counts, color, line, name in zip((first, second), (BLUE, ORANGE), ("-", "--"), names):
        density = counts / max(counts.sum(), 1) * len(counts) / 2
        axes.stairs(density, edges, fill=True, alpha=0.35, color=color)
        axes.stairs(density, edges, color=color, linestyle=line, label=f"{name} pairs")
    axes.set_yticks([])


def costs_svg(costs: PairCosts) -> str:
    """Return the costs of a positive and of a negative pair by their distance."""
    distances = np.linspace(0, 2, len(costs.values))
    curves = {
        "positive pair": (np.logaddexp(0, -costs.values) - np.log(2), BLUE, "-"),
        "negative pair": (np.logaddexp(0, costs.values) - np.log(2), ORANGE, "--"),
    }
    low, high = costs.beta - costs.alpha, costs.beta + costs.alpha
    parts = [f"the costs meet at the distance {costs.beta:.3f}, margins {costs.alpha:g}"]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for name, (values, color, line) in curves.items():
            axes.plot(distances, values, color=color, linestyle=line, label=name)
        axes.axvline(costs.beta, color=INK, linewidth=0.8, label="β")
        axes.axvspan(max(low, 0), min(high, 2), color=INK, alpha=0.08, label="± α")
        axes.set_xlabel("distance")
        axes.set_ylabel("cost, nats")
        legend(axes)

    return svg("costs", draw, parts)
