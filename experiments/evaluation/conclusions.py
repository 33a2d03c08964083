"""Sentences about the scores of a run: what a reader may conclude from the table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from experiments.evaluation.baselines import RAW_PIXELS, UNTRAINED
from experiments.evaluation.intervals import Interval, mean_interval
from experiments.evaluation.scores import RECALL, ClassScores, Rows, label_of, percent

# If nothing but chance decides, n classes all have a gain, or all a loss, with the probability
# 2^(1 - n). This is below 5 % from six classes on.
_FEWEST_CLASSES = 6


class Gain(NamedTuple):
    """The difference of a score between the trained embedding and the untrained backbone.

    Attributes:
        label: Name of the score.
        trained, untrained: The scores, fractions.
        difference: Their difference and half of its 95 % interval, in points.
        classes: Number of classes.
    """

    label: str
    trained: float
    untrained: float
    difference: Interval
    classes: int

    @property
    def sign(self) -> int:
        """1 for a gain, -1 for a loss, and 0 for a difference that chance may give."""
        mean, half = self.difference
        return int(math.copysign(1, mean)) if abs(mean) > half else 0

    @property
    def text(self) -> str:
        """The scores and their difference, in percent."""
        return (
            f"{self.label} {percent(self.trained)} % against {percent(self.untrained)} % "
            f"({'+' if self.difference.mean >= 0.05 else ''}{self.difference.text()})"
        )


def gain(key: str, trained: ClassScores, untrained: ClassScores) -> Gain | None:
    """Return the gain of a score with its interval over classes. None if no query has the score.

    With the sums s_c of the differences of class c, its n_c queries, and n̄ the mean of n_c, the
    difference is the mean of

        d + (s_c - d n_c) / n̄,    d = Σ s_c / Σ n_c

    and these values of the C classes have the 95 % t-interval of C - 1 degrees of freedom. The
    images of a class vary together, so that their number would give a too narrow interval.

    Args:
        key: Key of the score, such as "map@r".
        trained, untrained: Scores of the same classes in the same order.

    Reference: Cochran 1977, "Sampling techniques", section 6.4: the variance of a ratio.
    """
    import numpy as np

    (after, counts), (before, _) = np.array(trained[key]), np.array(untrained[key])
    known = counts > 0
    sums, counts = (after - before)[known], counts[known]
    if not len(counts):
        return None
    total, mean = counts.sum(), sums.sum() / counts.sum()
    values = mean + (sums - mean * counts) / counts.mean()
    return Gain(
        label_of(key),
        float(after.sum() / total),
        float(before.sum() / total),
        mean_interval(100 * values),
        len(counts),
    )


def training_gain(classes: Mapping[str, ClassScores]) -> str:
    """Return whether the training gained over the untrained backbone, in a sentence.

    A run at another image size than the weights is compared with the better of both sizes.

    Args:
        classes: "embedding" and the names of baselines -> their scores of each class.

    Returns:
        Empty without an untrained backbone.
    """
    gains = {
        name: [
            found
            for key in (RECALL.at_1, "map@r")
            if (found := gain(key, classes["embedding"], scores)) is not None
        ]
        for name, scores in classes.items()
        if name.startswith(UNTRAINED) and "embedding" in classes
    }
    gains = {name: found for name, found in gains.items() if found}
    if not gains:
        return ""
    name, best = max(gains.items(), key=lambda pair: [each.untrained for each in pair[1]])
    count = best[0].classes
    numbers = f"{', '.join(each.text for each in best)}."
    if count < _FEWEST_CLASSES:
        return (
            f"Too few test classes, {count} instead of {_FEWEST_CLASSES} or more, to conclude "
            f"whether training gains over the {name}: {numbers}"
        )
    gained, lost = (
        " and ".join(each.label for each in best if each.sign == sign) for sign in (1, -1)
    )
    if gained and lost:
        text = f"Training gains in {gained} and loses in {lost} against the {name}"
    elif gained:
        text = f"Training gains in {gained} over the {name}"
    elif lost:
        text = f"Training makes the search worse than the {name}, in {lost}"
    else:
        text = f"Training shows no clear gain or loss against the {name}"
    return f"{text}: {numbers[:-1]}, 95 % intervals over {count} classes."


def below_raw_pixels(rows: Rows) -> str:
    """Return a sentence if the R@1 of the embedding is below the R@1 of raw pixels, or else "".

    Args:
        rows: The table of scores, or the rows of `result.json`.
    """
    found = {
        name: row[RECALL.at_1]
        for name, row in rows.items()
        if row.get(RECALL.at_1) is not None and name.rpartition(", ")[0] == RAW_PIXELS
    }
    own = rows.get("embedding, cosine", {}).get(RECALL.at_1)
    if not found or own is None or math.isnan(own):
        return ""
    best = max(found.values())
    if percent(own) == percent(best) or own > best:
        return ""
    return f"R@1 {percent(own)} % is below raw pixels ({percent(best)} %)."
