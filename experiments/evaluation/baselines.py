"""Baselines, the scores that the scores of an embedding are compared with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from experiments.evaluation.scores import RECALL, Rows, percent

UNTRAINED, RAW_PIXELS = "untrained backbone", "raw pixels"
#: Names of the baselines. A headline shows the first one that a run has.
BASELINES = (UNTRAINED, RAW_PIXELS)
#: Files of the baselines in a run's folder.
UNTRAINED_FILE, RAW_PIXELS_FILE = "untrained_backbone.json", "raw_pixels.json"


def best_baseline(rows: Rows) -> tuple[str, float | None]:
    """Return the row name and R@1 of the baseline for the headline.

    Args:
        rows: The table of scores.

    Returns:
        The better of the cosine and l2 rows; `("raw pixels", None)` without a baseline.
    """
    for name in BASELINES:
        found = {
            row: rows[row][RECALL.at_1]
            for row in (f"{name}, cosine", f"{name}, l2")
            if not math.isnan(rows.get(row, {}).get(RECALL.at_1, math.nan))
        }
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
    for name in BASELINES:
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
