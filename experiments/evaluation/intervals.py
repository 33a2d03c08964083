"""Means over seeds with their intervals, and differences that are larger than chance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["Difference", "Interval", "differences", "mean_interval"]

LEVEL = 0.95


class Interval(NamedTuple):
    """A mean and half of the width of its interval, which is NaN for a single score."""

    mean: float
    half_width: float


class Difference(NamedTuple):
    """The difference between the best mean and another one.

    Attributes:
        name: Name of the other one.
        best: Name of the best.
        interval: Interval of the difference, paired over seeds.
        p: Two-sided p of the paired t-test, corrected for the number of comparisons (Holm).
        beyond_chance: Whether p is below 0.05.
    """

    name: str
    best: str
    interval: Interval
    p: float
    beyond_chance: bool


def mean_interval(scores: Sequence[float]) -> Interval:
    """Return the mean and half of the width of its 95 % t-interval, t₀.₉₇₅(n − 1) · s / √n.

    Args:
        scores: A score for each seed.

    Reference: Student 1908, "The probable error of a mean".
    """
    import numpy as np
    from scipy import stats

    values = np.asarray(scores, float)
    mean = float(values.mean())
    if len(values) < 2:
        return Interval(mean, math.nan)
    factor = stats.t.ppf((1 + LEVEL) / 2, len(values) - 1)
    return Interval(mean, float(factor * values.std(ddof=1) / math.sqrt(len(values))))


def differences(scores: Mapping[str, Sequence[float]]) -> list[Difference]:
    """Compare the best mean with each other mean, in the order of the means.

    Args:
        scores: Name -> a score for each seed. All have the same seeds in the same order.

    Reference: Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    import numpy as np
    from scipy import stats

    names = sorted(scores, key=lambda name: -float(np.mean(scores[name])))
    best = np.asarray(scores[names[0]], float)
    gaps = {name: best - np.asarray(scores[name], float) for name in names[1:]}
    raw = {}
    for name, gap in gaps.items():
        if len(gap) < 2:
            raw[name] = math.nan
        elif np.ptp(gap) == 0:  # the t-test divides by the standard deviation
            raw[name] = 0.0 if gap[0] else 1.0
        else:
            raw[name] = float(stats.ttest_1samp(gap, 0.0).pvalue)
    corrected, highest = {}, 0.0
    for place, name in enumerate(sorted(raw, key=raw.__getitem__)):
        highest = max(highest, min(1.0, (len(raw) - place) * raw[name]))
        corrected[name] = highest if not math.isnan(raw[name]) else math.nan
    return [
        Difference(name, names[0], mean_interval(gap), corrected[name], corrected[name] < 1 - LEVEL)
        for name, gap in gaps.items()
    ]
