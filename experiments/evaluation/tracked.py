"""Figures of tracked losses, and of the gap of Proposition 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from experiments.evaluation.figures import Curves, over_epochs
from experiments.evaluation.scores import ACCURACY


def tracked_figures(histories: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, Curves]:
    """Return the figures of the tracked losses and of the gap of Proposition 1.

    Args:
        histories: Name of a run -> its objects of `metrics.jsonl`. "" for a single run.
    """
    keys = dict.fromkeys(key for rows in histories.values() for row in rows for key in row)
    parts = ("_tightness", "_contrastive")
    tracked = [key for key in keys if key.startswith("track/") and not key.endswith(parts)]
    tracked = [key for key in tracked if not key.startswith("track/gap_")]
    lines = {
        f"{key.removeprefix('track/')} {run}".strip(): over_epochs(history, key)
        for run, history in histories.items()
        for key in tracked
    }
    gaps, logs = {}, {}
    for run, history in histories.items():
        pairs = [over_epochs(history, f"track/gap_{name}") for name in ("ce", "pce", "lambda")]
        ce, pce, lam = (dict(points) for points in pairs)
        name = f"CE − PCE {run}".strip()
        gaps[name] = [(epoch, ce[epoch] - value) for epoch, value in pce.items()]
        logs[f"λ {run}".strip()] = [(e, math.log10(value)) for e, value in lam.items() if value > 0]
    figures = {"Losses on fixed training batches": Curves(lines, "loss")}
    figures["Gap of Proposition 1"] = Curves(gaps, "nats", levels={"0": 0.0})
    figures["λ of Proposition 1"] = Curves(logs, "log₁₀ λ")
    return {title: curves for title, curves in figures.items() if any(curves.lines.values())}


def accuracy_difference(histories: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """Return the largest difference of the accuracy curves of two runs as a sentence.

    The text is empty without two runs that have the accuracies of the same epochs.
    """
    curves = [dict(over_epochs(history, ACCURACY, 100)) for history in histories.values()]
    if len(curves) != 2 or not curves[0].keys() & curves[1].keys():
        return ""
    epochs = sorted(curves[0].keys() & curves[1].keys())
    gaps = {epoch: abs(curves[0][epoch] - curves[1][epoch]) for epoch in epochs}
    epoch = max(gaps, key=gaps.__getitem__)
    last = gaps[epochs[-1]]
    return (
        f"accuracy curves: largest difference {gaps[epoch]:.1f} points (epoch {epoch:g}), "
        f"{last:.1f} at the end"
    )
