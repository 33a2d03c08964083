"""What scores over several seeds say: means, their intervals, and differences beyond chance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["Difference", "Interval", "differences", "mean_interval"]

LEVEL = 0.95


class Interval(NamedTuple):
    """A mean, and how far from it the true one may lie either way; NaN of a single score."""

    mean: float
    half_width: float


class Difference(NamedTuple):
    """How much lower one thing scores than the best.

    Attributes:
        name: of the other one.
        best: the name of the best.
        interval: of the best less the other, paired over seeds.
        p: two-sided, by the paired t-test, corrected for all that are compared (Holm).
        beyond_chance: whether p is below 0.05.
    """

    name: str
    best: str
    interval: Interval
    p: float
    beyond_chance: bool


def mean_interval(scores: Sequence[float]) -> Interval:
    """Mean and half width of the 95 % t-interval, t₀.₉₇₅(n − 1) · s / √n.

    Args:
        scores: of as many seeds.

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
    """The best in the mean beside each of the others, in the order of their means.

    Args:
        scores: name -> a score for each seed, the same seeds in the same order.

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
        elif np.ptp(gap) == 0:  # the t-test divides by their spread
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
