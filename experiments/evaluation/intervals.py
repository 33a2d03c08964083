"""Means over seeds with their intervals, and differences that are larger than chance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Difference", "Interval", "differences", "mean_interval"]

LEVEL = 0.95
# A paired t-test of two seeds has one degree of freedom, so nearly no difference is significant.
_FEWEST_SEEDS = 3


class Interval(NamedTuple):
    """A mean and half of the width of its interval, which is NaN for a single score."""

    mean: float
    half_width: float

    def text(self, digits: int = 1) -> str:
        """Return the interval as text, with this number of decimal places."""
        mean = f"{self.mean:z.{digits}f}"
        return mean if math.isnan(self.half_width) else f"{mean} ± {self.half_width:.{digits}f}"


class Difference(NamedTuple):
    """The difference between the best mean and another one, paired over seeds.

    Attributes:
        name: Name of the other one.
        best: Name of the best.
        mean: Mean of the difference.
        p: Two-sided p of the paired t-test, corrected for the number of comparisons (Holm). NaN for
            fewer than three seeds.
    """

    name: str
    best: str
    mean: float
    p: float

    @property
    def verdict(self) -> str:
        """Whether the difference is larger than chance, by the corrected p only."""
        if math.isnan(self.p):
            return f"too few seeds to conclude, at least {_FEWEST_SEEDS} are needed"
        larger = "larger than chance" if self.p < 1 - LEVEL else "no more than chance may give"
        return f"{larger} (p = {self.p:.2g})"

    def text(self, digits: int = 1) -> str:
        """Return the difference as a sentence, with this number of decimal places."""
        return f"{self.best} leads {self.name} by {self.mean:z.{digits}f}: {self.verdict}"


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


def differences(
    scores: Mapping[str, Sequence[float]], higher_is_better: bool = True
) -> list[Difference]:
    """Compare the best mean with each other mean, in the order of the means.

    Args:
        scores: Name -> a score for each seed. All have the same seeds in the same order.
        higher_is_better: Whether the best mean is the highest one.

    Reference: Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    import numpy as np

    sign = 1 if higher_is_better else -1
    values = {name: sign * np.asarray(scores[name], float) for name in scores}
    names = sorted(values, key=lambda name: -float(values[name].mean()))
    gaps = {name: values[names[0]] - values[name] for name in names[1:]}
    raw = {name: _paired_p(gap) for name, gap in gaps.items()}
    corrected, highest = {}, 0.0
    for place, name in enumerate(sorted(raw, key=raw.__getitem__)):
        highest = max(highest, min(1.0, (len(raw) - place) * raw[name]))
        corrected[name] = math.nan if math.isnan(raw[name]) else highest
    return [
        Difference(name, names[0], float(gap.mean()), corrected[name]) for name, gap in gaps.items()
    ]


def _paired_p(gap: np.ndarray) -> float:
    """Return the two-sided p of the t-test of paired differences; NaN for too few."""
    import numpy as np
    from scipy import stats

    if len(gap) < _FEWEST_SEEDS:
        return math.nan
    if np.ptp(gap) == 0:  # the t-test divides by the standard deviation
        return 0.0 if gap[0] else 1.0
    return float(stats.ttest_1samp(gap, 0.0).pvalue)
