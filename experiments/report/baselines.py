"""Baselines: what the embedding's scores are compared with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

__all__ = ["BASELINES", "RAW_PIXELS", "UNTRAINED", "Rows", "best_baseline", "distinct_baselines"]

UNTRAINED, RAW_PIXELS = "untrained backbone", "raw pixels"
#: Names of the baselines. A headline shows the first one that a run has.
BASELINES = (UNTRAINED, RAW_PIXELS)
#: Row name, such as `"cosine"` -> {K as text, or a column's name: fraction}.
Rows: TypeAlias = Mapping[str, Mapping[str, float]]


def best_baseline(recall: Mapping[str, Mapping[Any, float]]) -> tuple[str, float | None]:
    """Return the row name and R@1 of the baseline for the headline.

    Args:
        recall: row name -> {K: fraction}.

    Returns:
        The better of the cosine and l2 rows; `("raw pixels", None)` without a baseline.
    """
    for name in BASELINES:
        found = {
            row: recall[row][1]
            for row in (f"{name}, cosine", f"{name}, l2")
            if not math.isnan(recall.get(row, {}).get(1, math.nan))
        }
        if found:
            return max(found.items(), key=lambda pair: pair[1])
    return RAW_PIXELS, None


def distinct_baselines(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Rows]:
    """Return the baselines of several runs, without repetition.

    Args:
        results: run -> its `result.json`.

    Returns:
        Label -> rows. The label is the baseline's name, with the first run in parentheses if the
        runs' scores differ.
    """
    found: dict[str, Rows] = {}
    for name in BASELINES:
        distinct: dict[str, tuple[str, Rows]] = {}
        for run, result in results.items():
            rows = _rows(name, result)
            if rows:
                distinct.setdefault(_shown(rows), (run, rows))
        for run, rows in distinct.values():
            found[name if len(distinct) == 1 else f"{name} ({run})"] = rows
    return found


def _rows(name: str, result: Mapping[str, Any]) -> Rows:
    """Return a baseline of a run. The result of an earlier version has recall only."""
    of_recall = {
        row.removeprefix(f"{name}, "): by_k
        for row, by_k in result["recall"].items()
        if row.startswith(f"{name}, ")
    }
    rows: Rows = result.get("baselines", {}).get(name, of_recall)
    return rows


def _shown(rows: Rows) -> str:
    """Return the scores as tables show them, so that rounding errors do not count."""
    return str({row: {k: f"{100 * v:.1f}" for k, v in by_k.items()} for row, by_k in rows.items()})
