"""Verification: the errors of the decision same or different by a threshold on a pair's score."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from keras_dml._common.checks import check_choice, check_seed, check_whole
from keras_dml._common.errors import ArgumentError
from keras_dml._common.rows import finite_rows
from keras_dml._common.types import METRICS, Float64Array, Int64Array, Metric
from keras_dml.metrics.class_bootstrap import resampled
from keras_dml.metrics.pair_counts import (
    NEGATIVE,
    POSITIVE,
    LabeledRows,
    between,
    count_bins,
    count_values,
)
from keras_dml.metrics.pair_scores import PairScores
from keras_dml.metrics.rates import RULE_OF_THREE, allowed, checked_rates, pairs_needed
from keras_dml.metrics.relevance import checked_labels, class_numbers

Interval = tuple[float, float]

# Number of points of a curve along each of its rates. Steps of the false match rate are
# logarithmic.
_STEPS = 400
_CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class OperatingPoint:
    """A threshold and its error rates.

    Examples:
        >>> labels = np.repeat(np.arange(30), 4)
        >>> z = np.eye(30)[labels] + 0.2 * np.random.default_rng(0).normal(size=(120, 30))
        >>> point = verification(z, labels, [1e-2]).points[0]
        >>> point.measured_false_match_rate <= 1e-2
        True

    Attributes:
        metric: "cosine" or "l2".
        false_match_rate: The requested rate.
        threshold: Two embeddings match if their similarity is at least this threshold (for "l2": if
            their distance is at most this threshold). It accepts the most pairs without exceeding
            the rate. It lies halfway between the scores of the last accepted and the first rejected
            pair, so that both stay on their side if another backend rounds their scores
            differently.
        measured_false_match_rate: Fraction of negative pairs that match, never above the rate.
        true_match_rate: Fraction of positive pairs that match.
        threshold_interval: Bounds of the threshold, lowest first.
        false_match_rate_interval: Bounds of the false match rate of other classes at this
            threshold.
        true_match_rate_interval: Bounds of the true match rate at the threshold of the requested
            rate.
    """

    metric: Metric
    false_match_rate: float
    threshold: float
    measured_false_match_rate: float
    true_match_rate: float
    threshold_interval: Interval
    false_match_rate_interval: Interval
    true_match_rate_interval: Interval


@dataclasses.dataclass(frozen=True)
class VerificationResult:
    """The result of `verification`.

    Examples:
        >>> labels = np.repeat(np.arange(30), 4)
        >>> z = np.eye(30)[labels] + 0.2 * np.random.default_rng(0).normal(size=(120, 30))
        >>> found = verification(z, labels, [1e-2])
        >>> found.num_classes, found.positive_pairs
        (30, 180)

    Attributes:
        metric: "cosine" or "l2".
        num_classes: int.
        positive_pairs, negative_pairs: Number of unordered pairs of each kind.
        equal_error_rate: Rate at which the false match rate equals the fraction of positive pairs
            that do not match, interpolated linearly between two thresholds.
        equal_error_rate_interval: Bounds of the equal error rate.
        equal_error_threshold: First threshold at which the false match rate is not the smaller
            rate.
        points: An `OperatingPoint` for each requested false match rate, in that order.
        thresholds, false_match_rates, true_match_rates: Points of the ROC curve, float64 `[p]`,
            strictest first. They include both ends (no pair matches, all pairs match).
    """

    metric: Metric
    num_classes: int
    positive_pairs: int
    negative_pairs: int
    equal_error_rate: float
    equal_error_rate_interval: Interval
    equal_error_threshold: float
    points: tuple[OperatingPoint, ...]
    thresholds: Float64Array
    false_match_rates: Float64Array
    true_match_rates: Float64Array


def verification(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    false_match_rates: Iterable[float] = (1e-2, 1e-3, 1e-4),
    metric: Metric = "cosine",
    replicates: int = 500,
    seed: int = 0,
) -> VerificationResult:
    """Compute ROC curve, equal error rate, and a threshold per false match rate, over all pairs.

    Two embeddings "match" if their score is at least a threshold. The false match rate is the
    fraction of the N₋ pairs of different classes that match, and the true match rate the fraction
    of the N₊ pairs of the same class:

        FMR(t) = |{negative pairs with score ≥ t}| / N₋,   TMR(t) = |{positive …}| / N₊

    Exact, including ties: the thresholds, both rates at them, the equal error rate, and each point
    of the curve (about 800 points are returned). A pair's score is computed in float64 and rounded
    to float32. Similarities are first rounded to multiples of 2⁻⁴⁰. All pairs are counted twice, in
    blocks of 1,024 rows: by bins of distance, and then by value in the bins with the thresholds.

    Approximate: the intervals, which are the central 95 % of a bootstrap that draws classes, not
    pairs, because the pairs of a class vary together. The bootstrap weights a sample of the pairs:
    all pairs up to about a million, and otherwise a sample that is denser at high scores. The
    intervals estimate the results with other classes of the same kind. They are too narrow for few
    classes (fewer than 20, for example). For a rate that only one or two pairs exceed, they contain
    no more information than two pairs.

    Args:
        embeddings: Numbers `[n, d]`.
        labels: Class of each row, `[n]`, as numbers or strings.
        false_match_rates: At least one rate, above 0 and below 1.
        metric: "cosine" or "l2".
        replicates: Number of bootstrap drawings. 0 disables the bootstrap, and the intervals are
            NaN.
        seed: Seed of the bootstrap and its sample. Nothing else is random.

    Returns:
        `VerificationResult`. Takes n²d time, and memory for the embeddings in float64 plus about
        200 MB.

    Raises:
        ValueError: There is only one class (no negative pairs), no class has two rows (no positive
            pairs), or a rate is out of range or needs more negative pairs than there are
            (`pairs_needed`). Also as in `recall_at_k`.

    Reference: ISO/IEC 19795-1:2021, "Biometric performance testing and reporting", for the terms;
    Bolle, Ratha and Pankanti 2004, "Error analysis of pattern recognition systems: the subsets
    bootstrap", for the drawing of classes.

    Examples:

        labels = np.repeat(np.arange(30), 4)
        z = np.eye(30)[labels] + 0.2 * np.random.default_rng(0).normal(size=(120, 30))
        point = verification(z, labels, [1e-3]).points[0]
        point.threshold, point.true_match_rate
    """
    check_choice("metric", metric, METRICS)
    seed = check_seed("seed", seed)
    replicates = check_whole("replicates", replicates, least=0, most=1_000_000)
    rates = checked_rates("false_match_rates", false_match_rates)
    finite = finite_rows(embeddings, "embeddings")
    codes = class_numbers(checked_labels("labels", labels, len(finite)))
    order = np.argsort(codes, kind="stable")
    rows = LabeledRows(codes[order], np.bincount(codes), PairScores(finite[order], metric))
    negative, positive = rows.totals
    _check_pairs(negative, positive, rates)
    found = _Targets(rows, rates, seed)
    strictest = [found.threshold(rate) for rate in rates]
    thresholds = np.array([threshold for threshold, _ in strictest], np.float32)
    drawn = resampled(
        *found.sample, rows.sizes, rows.scores.farthest, rates, thresholds, replicates, seed
    )
    sign = 1.0 if metric == "cosine" else -1.0
    points = tuple(
        OperatingPoint(
            metric,
            rate,
            sign * float(threshold),
            int(matching[NEGATIVE]) / negative,
            int(matching[POSITIVE]) / positive,
            _interval(sign * drawn.thresholds[:, place]),
            _interval(drawn.false_match_rates[:, place]),
            _interval(drawn.true_match_rates[:, place]),
        )
        for place, (rate, threshold, matching) in enumerate(zip(rates, *zip(*strictest)))
    )
    error, error_threshold = found.equal_error()
    scores, false, true = found.curve()
    return VerificationResult(
        metric,
        len(rows.sizes),
        positive,
        negative,
        error,
        _interval(drawn.equal_error_rates),
        sign * error_threshold,
        points,
        sign * scores,
        false,
        true,
    )


def _check_pairs(negative: int, positive: int, rates: Sequence[float]) -> None:
    if not negative:
        raise ArgumentError(
            "labels must have at least two classes, but got one, which has only positive pairs."
        )
    if not positive:
        raise ArgumentError(
            "labels must have a class with at least two rows, but got none, so that no pair is "
            "positive."
        )
    for rate in rates:
        needed = pairs_needed(rate)
        if negative < needed:
            raise ArgumentError(
                f"false_match_rates must be at least {RULE_OF_THREE / negative:.2g}, the smallest "
                f"rate that {negative:,} negative pairs can show, but got {rate:g}. It needs "
                f"{needed:,} pairs (3 / rate)."
            )


class _Targets:
    """Exact counts of the pairs around each rate's threshold and around the equal error rate."""

    def __init__(self, rows: LabeledRows, rates: Sequence[float], seed: int) -> None:
        self._totals = np.array(rows.totals)
        self._farthest = rows.scores.farthest
        self._histogram = count_bins(rows)
        matching = self._histogram.matching
        false, missed = self._errors(matching)
        targets = [matching[NEGATIVE] > self._allowed(rate) for rate in rates]
        places = [int(np.argmax(beyond)) for beyond in (*targets, false >= missed)]
        self._values, self._matching, self.sample = count_values(
            rows, places, self._histogram, seed
        )

    def _allowed(self, rate: float) -> int:
        return allowed(rate, int(self._totals[NEGATIVE]))

    def threshold(self, rate: float) -> tuple[np.float32, Int64Array]:
        """Return the threshold of a rate, and the number of pairs of each kind at or above it."""
        values, matching = self._values, self._matching
        place = int(np.argmax(matching[NEGATIVE] > self._allowed(rate)))
        accepted = values[place - 1] if place else np.float32(np.inf)
        threshold = np.float32(between(values[place], accepted, self._farthest))
        return threshold, matching[:, place - 1] if place else np.zeros(2, np.int64)

    def equal_error(self) -> tuple[float, float]:
        """Return the rate and the score at which the errors are equal."""
        false, missed = self._errors(np.pad(self._matching, ((0, 0), (1, 0))))
        place = int(np.argmax(false >= missed))
        before, after = np.abs(false - missed)[place - 1 : place + 1]
        part = before / (before + after)
        rate = false[place - 1] + part * (false[place] - false[place - 1])
        return float(rate), float(self._values[place - 1])

    def curve(self) -> tuple[Float64Array, ...]:
        """Return points of the curve: scores, false match rates, and true match rates."""
        false, true = self._histogram.matching / self._totals[:, None]
        last = np.array([len(false) - 1])
        wanted = [
            np.searchsorted(false, np.geomspace(1 / self._totals[NEGATIVE], 1, _STEPS)),
            np.searchsorted(true, np.linspace(0, 1, _STEPS + 1)[1:]),
            last,
        ]
        places = np.unique(np.minimum(np.concatenate(wanted), last))
        scores = np.concatenate([[np.inf], self._histogram.lowest[places]])
        # Among equal points, take the strictest.
        points = np.stack([np.append(0.0, false[places]), np.append(0.0, true[places])])
        new = np.append(True, np.any(np.diff(points, axis=1) > 0, axis=0))
        return scores[new], points[0, new], points[1, new]

    def _errors(self, matching: Int64Array) -> tuple[np.ndarray, np.ndarray]:
        """Return the false match rate and the false non-match rate of counts `[2, v]`."""
        false, true = matching[NEGATIVE], matching[POSITIVE]
        positive = self._totals[POSITIVE]
        return false / self._totals[NEGATIVE], (positive - true) / positive


def _interval(values: Float64Array) -> Interval:
    """Return the central 95 % of the resampled values. NaN if all of them are NaN."""
    values = values[~np.isnan(values)]
    if not len(values):
        return math.nan, math.nan
    outside = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(values, [outside, 1 - outside], method="inverted_cdf")
    return float(low), float(high)
