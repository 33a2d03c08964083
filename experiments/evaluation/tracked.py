"""Figures of tracked losses, and of the gap of Proposition 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from experiments.evaluation.figures import Curves, over_epochs


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
