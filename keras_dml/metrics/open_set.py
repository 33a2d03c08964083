"""Open-set identification: whether a query's class is known, and which class it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from keras_dml._common.checks import check_choice, check_number
from keras_dml._common.errors import ArgumentError
from keras_dml._common.types import METRICS, BoolArray, Float32Array, Int64Array, Metric
from keras_dml.metrics.pair_counts import between
from keras_dml.metrics.pair_scores import PairScores, pair_blocks
from keras_dml.metrics.rates import allowed, checked_rates, pairs_needed
from keras_dml.metrics.relevance import checked_sets


@dataclasses.dataclass(frozen=True)
class IdentificationPoint:
    """The error rates at a threshold.

    Examples:
        >>> labels = np.repeat(np.arange(30), 4)
        >>> z = np.eye(30)[labels] + 0.2 * np.random.default_rng(0).normal(size=(120, 30))
        >>> point = identification(z, labels, [0.05]).points[0]
        >>> bool(point.false_positive_identification_rate <= 0.05)
        True

    Attributes:
        threshold: A query gets the class of its nearest item if their similarity is at least this
            threshold (for "l2": if their distance is at most this threshold). Any other query is
            declared unknown.
        false_positive_identification_rate: Fraction of unknown queries that get a class.
        detection_and_identification_rate: Fraction of known queries that get their class.
        misidentification_rate: Fraction of known queries that get another class.
    """

    threshold: float
    false_positive_identification_rate: float
    detection_and_identification_rate: float
    misidentification_rate: float


@dataclasses.dataclass(frozen=True)
class Identification:
    """The result of `identification`.

    Examples:
        >>> labels = np.repeat(np.arange(30), 4)
        >>> z = np.eye(30)[labels] + 0.2 * np.random.default_rng(0).normal(size=(120, 30))
        >>> found = identification(z, labels, [0.05])
        >>> bool(found.at(0.5).misidentification_rate < 0.1)
        True

    Attributes:
        metric: "cosine" or "l2".
        known, unknown: Number of known and of unknown queries.
        points: An `IdentificationPoint` for each requested rate, in that order.
    """

    metric: Metric
    known: int
    unknown: int
    points: tuple[IdentificationPoint, ...]
    # Nearness of the nearest item (greater is nearer), and whether the item has the query's class.
    _known: Float32Array = dataclasses.field(repr=False)
    _right: BoolArray = dataclasses.field(repr=False)
    _unknown: Float32Array = dataclasses.field(repr=False)
    _farthest: float = dataclasses.field(repr=False)

    def at(self, threshold: float) -> IdentificationPoint:
        """Compute the error rates at another threshold, such as a threshold of `verification`.

        Raises:
            ValueError: The threshold is NaN or infinity.
        """
        threshold = check_number("threshold", threshold)
        least = threshold if self.metric == "cosine" else -threshold
        return IdentificationPoint(threshold, *self._rates(least))

    def at_rate(self, rate: float) -> IdentificationPoint:
        """Find the threshold that gives the most queries a class within a false positive rate.

        The threshold is halfway between the scores of the last accepted and the first rejected
        query.

        Raises:
            ValueError: The rate is out of range, or there are too few unknown queries to measure
                it.
        """
        rate = check_number("rate", rate, above=0, below=1)
        needed = pairs_needed(rate)
        if self.unknown < needed:
            raise ArgumentError(
                "false_positive_identification_rates must be rates that the queries can show. "
                f"{rate:g} needs at least {needed:,} unknown queries (3 / rate), but got "
                f"{self.unknown:,}."
            )
        falling = -np.sort(-self._unknown)
        rejected = falling[allowed(rate, self.unknown)]
        given = (scores[scores > rejected] for scores in (self._known, self._unknown))
        accepted = np.min(np.concatenate([*given]), initial=np.float32(np.inf))
        least = float(between(rejected, accepted, self._farthest))
        sign = 1.0 if self.metric == "cosine" else -1.0
        return IdentificationPoint(sign * least, *self._rates(least))

    def _rates(self, threshold: float) -> tuple[float, float, float]:
        # A float64, because NumPy would round a Python number to the float32 of the scores.
        least = np.float64(threshold)
        given = self._known >= least
        return (
            np.count_nonzero(self._unknown >= least) / self.unknown,
            np.count_nonzero(given & self._right) / self.known,
            np.count_nonzero(given & ~self._right) / self.known,
        )


def identification(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    false_positive_identification_rates: Iterable[float] = (1e-1, 1e-2),
    metric: Metric = "cosine",
    gallery: npt.ArrayLike | None = None,
    gallery_labels: npt.ArrayLike | None = None,
) -> Identification:
    """Measure how well the nearest item and a threshold identify the known classes of queries.

    With s(q) the score of query q's nearest item:

        FPIR(t) = |{unknown q: s(q) ≥ t}| / |{unknown q}|
        DIR(t) = |{known q: s(q) ≥ t, the nearest item is of q's class}| / |{known q}|

    With a gallery, a query is known if the gallery contains its class. Without a gallery, each row
    is a query twice: as a known query against all other rows, if one of them has its class, and as
    an unknown query against the rows of other classes, as if its class had never been enrolled. The
    rates are exact, with the scores of `verification`. If an item of another class is as near as
    the nearest item of the query's class, the query counts as misidentified.

    Args:
        embeddings: Numbers `[n, d]`.
        labels: Class of each row, `[n]`.
        false_positive_identification_rates: Rates above 0 and below 1. Can be empty to use only
            `at`.
        metric: "cosine" or "l2".
        gallery: Numbers `[m, d]` to search instead of the other rows.
        gallery_labels: Class of each row of the gallery, `[m]`.

    Returns:
        `Identification`. Takes n²d/2 (n·m·d) time, and memory for the embeddings in float64.

    Raises:
        ValueError: Known or unknown queries are missing, or a rate is out of range or needs
            more unknown queries than there are (3 / rate). Also as in `recall_at_k`.

    Reference: Phillips, Grother and Micheals 2011, "Evaluation methods in face recognition", in
    Handbook of Face Recognition, section 21.2 (open-set identification).

    Examples:

        labels = np.repeat(np.arange(30), 4)
        z = np.eye(30)[labels] + 0.2 * np.random.default_rng(0).normal(size=(120, 30))
        found = identification(z, labels, [0.05])
        found.points[0].detection_and_identification_rate
    """
    check_choice("metric", metric, METRICS)
    rates = checked_rates(
        "false_positive_identification_rates", false_positive_identification_rates, least=0
    )
    queries, items, codes, item_codes = checked_sets(
        embeddings, labels, gallery, gallery_labels, metric
    )
    own_rows = items is queries
    scores = PairScores(queries, metric, None if own_rows else items)
    same, other = _nearest(scores, codes, item_codes, own_rows)
    known = same > -np.inf
    unknown = other > -np.inf if own_rows else ~known
    if not known.any() or not unknown.any():
        raise ArgumentError(
            "labels must have known and unknown queries, but got "
            f"{np.count_nonzero(known):,} known and {np.count_nonzero(unknown):,} unknown. With a "
            "gallery, pass queries with and without a class of the gallery. Otherwise, pass two "
            "classes, one of them with two rows."
        )
    found = Identification(
        metric,
        int(np.count_nonzero(known)),
        int(np.count_nonzero(unknown)),
        (),
        np.maximum(same, other)[known],
        (same > other)[known],
        other[unknown],
        scores.farthest,
    )
    return dataclasses.replace(found, points=tuple(found.at_rate(rate) for rate in rates))


def _nearest(
    scores: PairScores, codes: Int64Array, item_codes: Int64Array, own_rows: bool
) -> tuple[Float32Array, Float32Array]:
    """Return the scores of each query's nearest item of its class and of other classes, or -inf."""
    best = np.full((2, len(codes)), -np.inf, np.float32)
    nothing = np.float32(-np.inf)
    for left, right in pair_blocks("nearest items", len(codes), len(item_codes), own_rows):
        block = scores.block(left, right)
        same = codes[left, None] == item_codes[right]
        others = np.where(same, nothing, block)
        if own_rows and left == right:
            np.fill_diagonal(same, False)
        block[~same] = nothing
        for kind, values in enumerate((block, others)):
            np.maximum(best[kind, left], values.max(axis=1), out=best[kind, left])
            if own_rows and left != right:
                np.maximum(best[kind, right], values.max(axis=0), out=best[kind, right])
    return best[0], best[1]
