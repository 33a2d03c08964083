"""Figures of a threshold: the ROC curve, and both error rates over the threshold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from experiments.pages.figures import BLUE, INK, ORANGE, legend, svg
from keras_dml.metrics import OperatingPoint, Verification

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def roc_svg(found: Verification, point: OperatingPoint) -> str:
    """Return the true match rate over the false match rate, with a point and its interval.

    Args:
        found: Result of `keras_dml.metrics.verification`.
        point: One of its points.
    """
    rate, matched = point.measured_false_match_rate, 100 * point.true_match_rate
    parts = [f"true match rate {matched:.1f} % at the false match rate {rate:.2g}"]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        shown = found.false_match_rates > 0
        axes.plot(
            found.false_match_rates[shown],
            100 * found.true_match_rates[shown],
            color=BLUE,
            label="all thresholds",
        )
        low, high = (100 * bound for bound in point.true_match_rate_interval)
        at = point.false_match_rate
        axes.plot([at, at], [low, high], color=ORANGE, linewidth=4, alpha=0.5, label="95 %")
        axes.plot([at], [matched], "o", color=INK, label="this threshold")
        axes.set_xscale("log")
        axes.set_ylim(0, 103)
        axes.set_xlabel("false match rate")
        axes.set_ylabel("true match rate, %")
        legend(axes)

    return svg("roc", draw, parts)


def errors_svg(found: Verification, point: OperatingPoint) -> str:
    """Return both error rates over the threshold, with the chosen threshold and its interval."""
    parts = [
        f"threshold {point.threshold:.3f}",
        f"equal error rate {100 * found.equal_error_rate:.2f} % "
        f"at {found.equal_error_threshold:.3f}",
    ]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        shown = np.isfinite(found.thresholds)
        thresholds = found.thresholds[shown]
        false = 100 * found.false_match_rates[shown]
        missed = 100 * (1 - found.true_match_rates[shown])
        axes.plot(thresholds, false, color=BLUE, label="false matches")
        axes.plot(thresholds, missed, color=ORANGE, linestyle="--", label="missed matches")
        axes.axvspan(*point.threshold_interval, color=INK, alpha=0.12, linewidth=0)
        axes.axvline(point.threshold, color=INK, linewidth=0.9, label="threshold, 95 %")
        axes.set_ylim(0, 103)
        axes.set_ylabel("share of the pairs, %")
        axes.set_xlabel("cosine similarity" if found.metric == "cosine" else "distance (l2)")
        legend(axes)

    return svg("errors", draw, parts)
