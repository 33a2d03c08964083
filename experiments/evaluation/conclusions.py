"""What a reader may conclude: baselines, intervals, and sentences about the scores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from experiments.evaluation.measurement import (
    EMBEDDING,
    RAW_PIXELS,
    UNTRAINED,
    Measurement,
    is_baseline,
)
from experiments.evaluation.scores import RECALL, SCORES, ClassScores, Score, percent
from experiments.evaluation.tables import MeanText

# By chance, all of n classes gain, or all lose, with the probability 2^(1 - n). This is below 5 %
# from six classes on.
_FEWEST_CLASSES = 6
# Bootstrap samples.
_SAMPLES = 10_000


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


def gain(score: Score, trained: ClassScores, untrained: ClassScores) -> Gain | None:
    """Return the gain of a score with its interval over classes. None if no query has the score.

    With the sums s_c of the differences of class c, its n_c queries, and n̄ the mean of n_c, the
    difference is the mean of

        d + (s_c - d n_c) / n̄,    d = Σ s_c / Σ n_c

    and these values of the C classes have the 95 % t-interval of C - 1 degrees of freedom. The
    images of a class vary together, so that their number would give a too narrow interval.

    Args:
        score: The score.
        trained, untrained: Scores of the same classes in the same order.

    Reference: Cochran 1977, "Sampling techniques", section 6.4: the variance of a ratio.
    """
    (after, counts), (before, _) = (np.array(each[score.at_1]) for each in (trained, untrained))
    known = counts > 0
    sums, counts = (after - before)[known], counts[known]
    if not len(counts):
        return None
    total, mean = counts.sum(), sums.sum() / counts.sum()
    values = mean + (sums - mean * counts) / counts.mean()
    return Gain(
        score.label_at_1,
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
            for score in (RECALL, SCORES["map@r"])
            if (found := gain(score, classes[EMBEDDING], scores)) is not None
        ]
        for name, scores in classes.items()
        if is_baseline(name, UNTRAINED) and EMBEDDING in classes
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


class PairedDifference(NamedTuple):
    """The difference of a score between two runs on the same images, in points.

    Attributes:
        label: Name of the score.
        difference: The second run minus the first one.
        low, high: Its 95 % interval.
        classes: Number of classes.
    """

    label: str
    difference: float
    low: float
    high: float
    classes: int

    def sentence(self, first: str, second: str) -> str:
        """Return which run is better, or that the runs cannot be told apart.

        Args:
            first, second: Names of the runs.
        """
        difference, low, high = self.difference, self.low, self.high
        if self.classes < _FEWEST_CLASSES:
            return (
                f"Too few test classes, {self.classes} instead of {_FEWEST_CLASSES} or more, to "
                f"tell {second} from {first}: {self.label} differs by {difference:z.1f} points."
            )
        if low <= 0 <= high:
            return (
                f"{first} and {second} cannot be told apart in {self.label}: the difference is "
                f"{difference:z.1f} points, {low:z.1f} to {high:z.1f}."
            )
        if difference < 0:
            second, difference, low, high = first, -difference, -high, -low
        return (
            f"{second} is better in {self.label} by {difference:z.1f} points, {low:z.1f} to "
            f"{high:z.1f}."
        )

    @property
    def text(self) -> str:
        """The difference with its interval."""
        return f"{self.difference:+z.1f} ({self.low:z.1f} to {self.high:z.1f})"


def paired_difference(
    score: Score, first: ClassScores, second: ClassScores
) -> PairedDifference | None:
    """Return the difference of a score with its interval. None if no query has the score.

    The interval is from the 2.5th to the 97.5th percentile of 10,000 bootstrap samples of the
    classes, the same for both runs. The images of a class vary together, so that samples of images
    would give a too narrow interval.

    Args:
        score: The score.
        first, second: Scores of the same classes in the same order.

    Reference: Efron and Tibshirani 1993, "An introduction to the bootstrap", chapter 13.
    """
    (before, counts), (after, _) = (np.array(each[score.at_1]) for each in (first, second))
    known = counts > 0
    sums, counts = 100 * (after - before)[known], counts[known]
    if not len(counts):
        return None
    classes = len(counts)
    rng, samples = np.random.default_rng(0), []
    for _ in range(100):  # in blocks, because there may be 10,000 classes
        times = rng.multinomial(classes, np.full(classes, 1 / classes), _SAMPLES // 100)
        samples.append((times @ sums) / (times @ counts))
    low, high = np.percentile(np.concatenate(samples), [2.5, 97.5])
    total = float(sums.sum() / counts.sum())
    return PairedDifference(score.label_at_1, total, float(low), float(high), classes)


def reranking_gain(before: ClassScores, after: ClassScores) -> str:
    """Return the differences that a re-ranking makes, with their intervals over the classes."""
    found = [
        difference
        for score in (RECALL, SCORES["map@r"])
        if (difference := paired_difference(score, before, after)) is not None
    ]
    texts = ", ".join(f"{each.label} {each.text}" for each in found)
    few = found and found[0].classes < _FEWEST_CLASSES
    over = f"{found[0].classes} classes" if found else "no class"
    note = f", too few to conclude: {_FEWEST_CLASSES} or more" if few else ""
    return f"{texts} points, 95 % intervals over {over}{note}"


def below_raw_pixels(measurements: Sequence[Measurement]) -> str:
    """Return a sentence if the R@1 of the embedding is below the R@1 of raw pixels, or else ""."""
    own = RECALL.of(measurements)
    found = [
        each.value
        for each in measurements
        if (each.part, each.side, each.score, each.k) == (RAW_PIXELS, "test", RECALL.name, 1)
        and not math.isnan(each.value)
    ]
    if not found or own is None or math.isnan(own.value):
        return ""
    best = max(found)
    if percent(own.value) == percent(best) or own.value > best:
        return ""
    return f"R@1 {percent(own.value)} % is below raw pixels ({percent(best)} %)."


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
        if math.isnan(self.half_width):
            return mean
        return MeanText(mean, f"{self.half_width:.{digits}f}")


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
    if len(gap) < _FEWEST_SEEDS:
        return math.nan
    if np.ptp(gap) == 0:  # the t-test divides by the standard deviation
        return 0.0 if gap[0] else 1.0
    return float(stats.ttest_1samp(gap, 0.0).pvalue)


def best_baseline(measurements: Iterable[Measurement]) -> Measurement | None:
    """Return the R@1 of the baseline for the headline. None without a baseline.

    It is the best R@1 of the untrained backbone, over distances and image sizes, or else of raw
    pixels.
    """
    recalls = [
        each
        for each in measurements
        if (each.score, each.k, each.side) == (RECALL.name, 1, "test")
        and not math.isnan(each.value)
    ]
    for name in (UNTRAINED, RAW_PIXELS):
        found = [each for each in recalls if is_baseline(each.part, name)]
        if found:
            return max(found, key=lambda each: each.value)
    return None


def distinct_baselines(
    runs: Mapping[str, Mapping[str, Sequence[Measurement]]],
) -> dict[str, Sequence[Measurement]]:
    """Return the baselines of several runs, without repetition.

    Args:
        runs: Run -> the scores of its baselines, from `result.baselines_of`.

    Returns:
        Label -> scores. The label is the baseline's name, with the first run in parentheses if the
        runs' scores differ.
    """
    found: dict[str, Sequence[Measurement]] = {}
    names = dict.fromkeys(name for baselines in runs.values() for name in baselines)
    # The untrained backbone first.
    for name in sorted(names, key=lambda name: is_baseline(name, RAW_PIXELS)):
        distinct: dict[object, tuple[str, Sequence[Measurement]]] = {}
        for run, baselines in runs.items():
            if name in baselines:
                # Two runs may differ by a rounding error that no table shows.
                shown = tuple((each.place, percent(each.value)) for each in baselines[name])
                distinct.setdefault(shown, (run, baselines[name]))
        for run, scores in distinct.values():
            found[name if len(distinct) == 1 else f"{name} ({run})"] = scores
    return found
