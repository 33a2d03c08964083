"""Same or different: the errors of deciding it by a threshold on the score of two embeddings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from keras_dml.checks import check_choice, check_number, check_seed, check_whole, shown
from keras_dml.errors import ArgumentError
from keras_dml.metrics.bar import steps_bar
from keras_dml.metrics.class_bootstrap import resampled
from keras_dml.metrics.pair_counts import (
    EVERYTHING,
    NEGATIVE,
    POSITIVE,
    LabeledRows,
    Window,
    between,
    count_pairs,
)
from keras_dml.metrics.pair_scores import PairScores
from keras_dml.metrics.recall import checked_labels, class_numbers
from keras_dml.nearness import METRICS, Metric

Interval = tuple[float, float]

# Up to so many pairs of each kind are counted by their scores without looking where first.
_FEW = 2**20
# Pairs that say where to look, and how many standard deviations around.
_LOOKED_AT = 2**19
_DEVIATIONS = 6.0
# Of a curve's points: so many even steps of each of its rates, those of the false match rate even
# in its logarithm.
_STEPS = 400
# Pairs for each false match that is asked for: with 3/p pairs and no false match among them, the
# rate is below p with a confidence of 95 %.
_RULE_OF_THREE = 3
_CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class OperatingPoint:
    """A threshold and what it does.

    Examples:
        >>> labels = np.repeat(np.arange(30), 4)
        >>> z = np.eye(30)[labels] + 0.2 * np.random.default_rng(0).normal(size=(120, 30))
        >>> point = verification(z, labels, [1e-2]).points[0]
        >>> point.measured_false_match_rate <= 1e-2
        True

    Attributes:
        metric: "cosine" or "l2".
        false_match_rate: the rate that was asked for.
        threshold: two embeddings match if their similarity is at least this, for "l2" if their
            distance is at most this. The one that lets most pairs match without exceeding the rate,
            halfway between the score of the last pair that matches and the first that does not: so
            these still do and do not where another backend rounds their scores otherwise.
        measured_false_match_rate: the share of negative pairs that match, never above the rate.
        true_match_rate: the share of positive pairs that match.
        threshold_interval: bounds of the threshold, lowest first.
        false_match_rate_interval: of the rate at this threshold: what other classes would make it.
        true_match_rate_interval: of the true match rate at the threshold of the rate.
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
class Verification:
    """What `verification` finds.

    Examples:
        >>> labels = np.repeat(np.arange(30), 4)
        >>> z = np.eye(30)[labels] + 0.2 * np.random.default_rng(0).normal(size=(120, 30))
        >>> found = verification(z, labels, [1e-2])
        >>> found.num_classes, found.positive_pairs
        (30, 180)

    Attributes:
        metric: "cosine" or "l2".
        num_classes: int.
        positive_pairs, negative_pairs: how many there are, unordered.
        equal_error_rate: where the false match rate and the share of positive pairs that do not
            match are one, on the straight line between the two thresholds around.
        equal_error_rate_interval: its bounds.
        equal_error_threshold: the first at which the false match rate is no longer the smaller.
        points: an `OperatingPoint` for each false match rate asked for, in that order.
        thresholds, false_match_rates, true_match_rates: points of the ROC curve, float64 `[p]`,
            strictest first; the ends (no pair matches, all do) included.
    """

    metric: Metric
    num_classes: int
    positive_pairs: int
    negative_pairs: int
    equal_error_rate: float
    equal_error_rate_interval: Interval
    equal_error_threshold: float
    points: tuple[OperatingPoint, ...]
    thresholds: npt.NDArray[np.float64]
    false_match_rates: npt.NDArray[np.float64]
    true_match_rates: npt.NDArray[np.float64]


def pairs_needed(false_match_rate: float) -> int:
    """How many negative pairs it takes to show a false match rate: 3 / rate, the rule of three.

    With fewer, not even a set without a single false match would say, with a confidence of 95 %,
    that the rate is kept.

    Examples:
        >>> pairs_needed(1e-3)
        3000

    Raises:
        ValueError: a rate that is not above 0 and below 1.

    Reference: ISO/IEC 19795-1:2021, annex B; Hanley and Lippman-Hand 1983, "If nothing goes wrong,
    is everything all right?".
    """
    rate = check_number("false_match_rate", false_match_rate, above=0, below=1)
    # At most what an int64 counts, more than any set has: the quotient may be infinite.
    return math.ceil(min(_RULE_OF_THREE / rate * (1 - 1e-12), 2.0**63))


def verification(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    false_match_rates: Iterable[float] = (1e-2, 1e-3, 1e-4),
    metric: Metric = "cosine",
    replicates: int = 500,
    seed: int = 0,
) -> Verification:
    """ROC, equal error rate, and the threshold of each false match rate, over all pairs of a set.

    Two embeddings "match" if they score at least a threshold. Of the N₋ pairs of two classes a
    share matches, the false match rate; of the N₊ pairs of one class the true match rate:

        FMR(t) = |{negative pairs with score ≥ t}| / N₋,   TMR(t) = |{positive …}| / N₊

    Exact, ties included: thresholds, both rates at them, the equal error rate, and each point of
    the curve (about 800 of its points are returned). A pair's score is computed in float64 and
    rounded to float32, similarities to multiples of 2⁻⁴⁰ before. Pairs are counted in blocks of
    1,024 rows, all of them, and only scores close to the thresholds are kept by value.

    Approximate: the intervals, the central 95 % of a bootstrap that draws classes, not pairs, as
    the pairs of a class vary together. It weights a sample of the pairs, all of them up to about a
    million, of more those that score high the more densely. They say what other classes of the
    same kind would give, and of few classes (fewer than 20, say) too narrow a range. Of a rate that
    only one or two pairs exceed, as little is known as two pairs can say.

    Args:
        embeddings: numbers `[n, d]`.
        labels: class of each row, `[n]`; numbers or strings.
        false_match_rates: above 0 and below 1, one or more.
        metric: "cosine" or "l2".
        replicates: drawings of the bootstrap; 0: none, and NaN for the intervals.
        seed: of the bootstrap and its sample; nothing else is random.

    Returns:
        `Verification`. Takes n²d/2 time; memory for the embeddings in float64, and some 200 MB.

    Raises:
        ValueError: one class alone (no negative pair); no class with two rows (no positive pair);
            a rate out of range, or one that takes more negative pairs than there are
            (`pairs_needed`); else as `recall_at_k`.

    Reference: ISO/IEC 19795-1:2021, "Biometric performance testing and reporting", for the terms;
    Bolle, Ratha and Pankanti 2004, "Error analysis of pattern recognition systems: the subsets
    bootstrap", for the drawing of classes.

    Examples:

        labels = np.repeat(np.arange(30), 4)
        z = np.eye(30)[labels] + 0.2 * np.random.default_rng(0).normal(size=(120, 30))
        point = verification(z, labels, [1e-3]).points[0]
        point.threshold, point.true_match_rate
    """
    from keras_dml.retrieval.rows import finite_rows

    check_choice("metric", metric, METRICS)
    seed = check_seed("seed", seed)
    replicates = check_whole("replicates", replicates, least=0, most=1_000_000)
    rates = checked_rates("false_match_rates", false_match_rates)
    finite = finite_rows(embeddings, "embeddings")
    codes = class_numbers(checked_labels("labels", labels, len(finite)))
    rows = _labeled_rows(finite, codes, metric)
    negative, positive = rows.totals
    _check_pairs(negative, positive, rates)
    found = _Targets(rows, rates, seed)
    strictest = [found.threshold(rate) for rate in rates]
    thresholds = np.array([threshold for threshold, _ in strictest], np.float32)
    with steps_bar("drawing classes", replicates, False) as bar:
        drawn = resampled(
            *found.counts.sample,
            rows.sizes,
            rows.scores.farthest,
            rates,
            thresholds,
            replicates,
            seed,
            bar.update,
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
    return Verification(
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


def checked_rates(name: str, given: Iterable[float], least: int = 1) -> tuple[float, ...]:
    """So many rates or more, each above 0 and below 1, or ValueError."""
    try:
        rates = None if isinstance(given, str) else list(given)
    except TypeError:
        rates = None
    if rates is None or len(rates) < least:
        raise ArgumentError(
            f"{name} must be a list of at least one rate. Received: {name}={shown(given)}"
        )
    return tuple(check_number(name, rate, above=0, below=1) for rate in rates)


def allowed(rate: float, pairs: int) -> int:
    """How many of the pairs may match: 1e-3 of 3,000 are 3, whatever the product's last digit."""
    return math.floor(rate * pairs * (1 + 1e-12))


def _labeled_rows(
    rows: npt.NDArray[np.float32], codes: npt.NDArray[np.int64], metric: Metric
) -> LabeledRows:
    order = np.argsort(codes, kind="stable")
    return LabeledRows(codes[order], np.bincount(codes), PairScores(rows[order], metric))


def _check_pairs(negative: int, positive: int, rates: Sequence[float]) -> None:
    if not negative:
        raise ArgumentError(
            "labels must be of two classes or more: of one alone there is no negative pair"
        )
    if not positive:
        raise ArgumentError(
            "labels must hold a class with two rows or more: without there is no positive pair"
        )
    for rate in rates:
        needed = pairs_needed(rate)
        if negative < needed:
            raise ArgumentError(
                f"false_match_rates must be rates that the pairs can show: {rate:g} takes "
                f"{needed:,} negative pairs (3 / rate), there are {negative:,}, which show "
                f"{_RULE_OF_THREE / negative:.2g} at the least. "
                f"Received: false_match_rates={shown(list(rates))}"
            )


class _Targets:
    """The pairs, counted exactly around each rate's threshold and where the two errors meet."""

    def __init__(self, rows: LabeledRows, rates: Sequence[float], seed: int) -> None:
        self._totals = np.array(rows.totals)
        self._farthest = rows.scores.farthest
        tail = None
        windows: list[Window] = [EVERYTHING]
        if max(rows.totals) > _FEW:
            tail = _falling(rows.random_scores(NEGATIVE, _LOOKED_AT, seed))
            others = _falling(rows.random_scores(POSITIVE, _LOOKED_AT, seed))
            windows = [_window_of_rate(tail, rate) for rate in rates]
            windows.append(_window_of_equal_errors(tail, others))
        self.counts = count_pairs(rows, windows, tail, seed)
        # Hardly ever: it lies further off than six standard deviations.
        missed = [self._bin(self._beyond_rate(rate)) for rate in rates if not self._first(rate)]
        if not self._meeting():
            missed.append(self._bin(self._errors_crossed()))
        if missed:
            self.counts = count_pairs(rows, [*windows, *missed], tail, seed)

    def threshold(self, rate: float) -> tuple[np.float32, npt.NDArray[np.int64]]:
        """The threshold of a rate, and how many pairs of each kind score at least that."""
        found = self._first(rate)
        if found is None:
            raise RuntimeError(f"no window of scores holds the threshold of {rate}")
        return found

    def equal_error(self) -> tuple[float, float]:
        """The rate and the score at which the errors meet."""
        found = self._meeting()
        if found is None:
            raise RuntimeError("no window of scores holds the equal error rate")
        return found

    def curve(self) -> tuple[npt.NDArray[np.float64], ...]:
        """Some points: scores, false and true match rates."""
        matching = np.cumsum(self.counts.histogram, axis=1) / self._totals[:, None]
        false, true = matching[NEGATIVE], matching[POSITIVE]
        last = np.array([len(false) - 1])
        wanted = [
            np.searchsorted(false, np.geomspace(1 / self._totals[NEGATIVE], 1, _STEPS)),
            np.searchsorted(true, np.linspace(0, 1, _STEPS + 1)[1:]),
            last,
        ]
        places = np.unique(np.minimum(np.concatenate(wanted), last))
        scores = np.concatenate([[np.inf], self.counts.lowest[places]])
        # Of points that are one the strictest.
        points = np.stack([np.append(0.0, false[places]), np.append(0.0, true[places])])
        new = np.append(True, np.any(np.diff(points, axis=1) > 0, axis=0))
        return scores[new], points[0, new], points[1, new]

    def _first(self, rate: float) -> tuple[np.float32, npt.NDArray[np.int64]] | None:
        """The threshold of a rate with the counts at it; None where no window holds it."""
        most = allowed(rate, int(self._totals[NEGATIVE]))
        for window in self.counts.windows:
            after = window.after()
            beyond = after[:, NEGATIVE] > most
            if beyond[-1] and not beyond[0]:
                place = int(np.argmax(beyond)) - 1
                neighbors = window.values[place], window.before(place)
                return np.float32(between(*neighbors, self._farthest)), after[place]
        return None

    def _meeting(self) -> tuple[float, float] | None:
        for window in self.counts.windows:
            false, missed = self._errors(window.after().T)
            if false[0] < missed[0] and false[-1] >= missed[-1]:
                place = int(np.argmax(false >= missed))
                before, after = np.abs(false - missed)[place - 1 : place + 1]
                part = before / (before + after)
                rate = false[place - 1] + part * (false[place] - false[place - 1])
                return float(rate), float(window.values[place - 1])
        return None

    def _errors(self, matching: npt.NDArray[np.int64]) -> tuple[np.ndarray, np.ndarray]:
        """False match rate and share of positive pairs that do not match, of counts `[2, v]`."""
        false, true = matching[NEGATIVE], matching[POSITIVE]
        positive = self._totals[POSITIVE]
        return false / self._totals[NEGATIVE], (positive - true) / positive

    def _beyond_rate(self, rate: float) -> npt.NDArray[np.bool_]:
        """Of each bin of the histogram, whether with it more match than a rate allows."""
        most = allowed(rate, int(self._totals[NEGATIVE]))
        return np.cumsum(self.counts.histogram[NEGATIVE]) > most

    def _errors_crossed(self) -> npt.NDArray[np.bool_]:
        false, missed = self._errors(np.cumsum(self.counts.histogram, axis=1))
        return false >= missed

    def _bin(self, beyond: npt.NDArray[np.bool_]) -> Window:
        """The scores of the first bin for which something is so."""
        place = int(np.argmax(beyond))
        lowest = self.counts.lowest
        highest = np.float32(np.inf)
        if place:
            highest = np.nextafter(lowest[place - 1], np.float32(-np.inf))
        return lowest[place], highest


def _falling(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return -np.sort(-scores)


def _window_of_rate(tail: npt.NDArray[np.float32], rate: float) -> Window:
    """Scores between which a share of all pairs ends, going by some of them, the highest first."""
    middle = rate * len(tail)
    far = _DEVIATIONS * math.sqrt(middle) + 10
    return _between(tail, math.floor(middle - far), math.ceil(middle + far))


def _window_of_equal_errors(
    negative: npt.NDArray[np.float32], positive: npt.NDArray[np.float32]
) -> Window:
    """Scores between which the two errors meet, going by some pairs of each kind."""
    scores = _falling(np.concatenate([negative, positive]))
    false = np.searchsorted(-negative, -scores, "right") / len(negative)
    missed = 1 - np.searchsorted(-positive, -scores, "right") / len(positive)
    spread = [
        share * (1 - share) / len(kind) for share, kind in ((false, negative), (missed, positive))
    ]
    far = _DEVIATIONS * np.sqrt(sum(spread)) + 10 / min(len(negative), len(positive))
    first = int(np.searchsorted(np.maximum.accumulate(false + far >= missed), True))
    last = int(np.searchsorted(np.maximum.accumulate(false - far >= missed), True))
    return _between(scores, first - 1, last)


def _between(scores: npt.NDArray[np.float32], first: int, last: int) -> Window:
    """From the score at one place to that at a lower one; without end where there is none."""
    low, high = EVERYTHING
    return (
        scores[last] if last < len(scores) else low,
        scores[first] if first >= 0 else high,
    )


def _interval(values: npt.NDArray[np.float64]) -> Interval:
    """The central 95 % of what the drawings gave; NaN where none gave anything."""
    values = values[~np.isnan(values)]
    if not len(values):
        return math.nan, math.nan
    outside = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(values, [outside, 1 - outside], method="inverted_cdf")
    return float(low), float(high)
