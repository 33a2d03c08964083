"""Baselines, the scores that the scores of an embedding are compared with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from experiments.evaluation.scores import RECALL, Rows, percent

UNTRAINED, RAW_PIXELS = "untrained backbone", "raw pixels"
#: How the names of the baselines begin. A headline shows the first one that a run has.
BASELINES = (UNTRAINED, RAW_PIXELS)
#: Files of the baselines in a run's folder.
UNTRAINED_FILE, RAW_PIXELS_FILE = "untrained_backbone.json", "raw_pixels.json"
NATIVE_FILE = "untrained_backbone_at_native_size.json"


def best_baseline(rows: Rows) -> tuple[str, float | None]:
    """Return the row name and R@1 of the baseline for the headline.

    Args:
        rows: The table of scores.

    Returns:
        The best of its rows, which differ in the distance, and of the untrained backbone also in
        the image size; `("raw pixels", None)` without a baseline.
    """
    for name in BASELINES:
        found = {}
        for row, scores in rows.items():
            # A row of the catalog has another name in between.
            baseline = row.rpartition(", ")[0]
            value = scores.get(RECALL.at_1, math.nan)
            if baseline.startswith(name) and ", " not in baseline and not math.isnan(value):
                found[row] = value
        if found:
            return max(found.items(), key=lambda pair: pair[1])
    return RAW_PIXELS, None


def distinct_baselines(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Rows]:
    """Return the baselines of several runs, without repetition.

    Args:
        results: Run -> its `result.json`.

    Returns:
        Label -> rows. The label is the baseline's name, with the first run in parentheses if the
        runs' scores differ.
    """
    found: dict[str, Rows] = {}
    names = dict.fromkeys(name for each in results.values() for name in each.get("baselines") or {})
    # In the order of `BASELINES`.
    for name in sorted(names, key=lambda name: name.startswith(RAW_PIXELS)):
        distinct: dict[str, tuple[str, Rows]] = {}
        for run, result in results.items():
            rows = (result.get("baselines") or {}).get(name)
            if rows:
                # Two runs may differ by a rounding error that no table shows.
                shown = {row: {k: percent(v) for k, v in of.items()} for row, of in rows.items()}
                distinct.setdefault(str(shown), (run, rows))
        for run, rows in distinct.values():
            found[name if len(distinct) == 1 else f"{name} ({run})"] = rows
    return found
