"""A bootstrap over classes: the variation of rates over pairs with other classes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_dml._common.types import Float32Array, Float64Array, Int64Array
from keras_dml.metrics.pair_counts import SampledPairs, between


class Resampled(NamedTuple):
    """Values for each resampling of the classes: float64 `[r]`, or `[r, rates]` per rate.

    Attributes:
        thresholds: The threshold for each rate.
        true_match_rates: True match rates at these thresholds.
        false_match_rates: False match rates at the thresholds of the original set.
        equal_error_rates: Equal error rate of the resampling.
    """

    thresholds: Float64Array
    true_match_rates: Float64Array
    false_match_rates: Float64Array
    equal_error_rates: Float64Array


def resampled(
    negative: SampledPairs,
    positive: SampledPairs,
    sizes: Int64Array,
    farthest: float,
    rates: Sequence[float],
    thresholds: Float32Array,
    replicates: int,
    seed: int,
) -> Resampled:
    """Resample the classes with replacement, as many as there are, `replicates` times.

    A class that is drawn w times counts w times in its positive pairs. A negative pair counts as
    often as the product of the counts of its two classes. All pairs of a class thus vary together,
    as they do with other classes. Two draws of the same class form no negative pairs.

    Args:
        negative, positive: The sampled pairs.
        sizes: Number of rows in each class, `[classes]`.
        farthest: Farthest score, as in `PairScores`.
        rates: False match rates.
        thresholds: Thresholds of the original set, `[rates]`.
        replicates: Number of resamplings.
        seed: Seed of the resamplings.
    """
    classes = len(sizes)
    shape = replicates, len(rates)
    chosen, true_rates, false_rates = (np.full(shape, np.nan) for _ in range(3))
    equal = np.full(replicates, np.nan)
    # Pairs that score at least the threshold come first.
    places = np.searchsorted(-negative.scores, -thresholds, "right")
    # Number of positive pairs that score at least as high as each negative pair.
    matched = np.searchsorted(-positive.scores, -negative.scores, "right")
    pairs = sizes * (sizes - 1.0) / 2
    for replicate in range(replicates):
        rng = np.random.default_rng((seed, replicate))
        drawn = rng.multinomial(classes, np.full(classes, 1 / classes)).astype(np.float64)
        rows = drawn * sizes
        total = (rows.sum() ** 2 - (rows**2).sum()) / 2
        if total <= 0 or (drawn * pairs).sum() <= 0:
            continue
        false = np.concatenate(
            [[0.0], np.cumsum(negative.weights * drawn[negative.first] * drawn[negative.second])]
        )
        true = np.concatenate([[0.0], np.cumsum(positive.weights * drawn[positive.first])])
        false /= total
        # The sample may contain no pair of the drawn classes.
        true /= max(true[-1], np.finfo(np.float64).tiny)
        # The first pair that exceeds the rate. The threshold is above its score.
        first = np.searchsorted(false, np.asarray(rates) * (1 + 1e-12), "right") - 1
        first = np.minimum(first, len(negative.scores) - 1)
        rejected = negative.scores[first]
        accepted = np.minimum(
            _next_above(rejected, negative.scores, false),
            _next_above(rejected, positive.scores, true),
        )
        chosen[replicate] = between(rejected, accepted, farthest)
        true_rates[replicate] = true[np.searchsorted(-positive.scores, -rejected, "left")]
        false_rates[replicate] = false[places]
        missed = 1 - true[matched]
        crossing = min(int(np.searchsorted(false[1:] - missed, 0.0)), len(missed) - 1)
        equal[replicate] = (false[1 + crossing] + missed[crossing]) / 2
    return Resampled(chosen, true_rates, false_rates, equal)


def _next_above(scores: Float32Array, falling: Float32Array, drawn: Float64Array) -> Float32Array:
    """Return the next higher score among the drawn pairs, or infinity if the score is the highest.

    Args:
        scores: Scores to start from.
        falling: Scores of the pairs in decreasing order, `[p]`.
        drawn: Cumulative fraction of the pairs in that order, `[p + 1]`. It increases at each drawn
            pair.
    """
    higher = np.searchsorted(-falling, -scores, "left")
    last = np.searchsorted(drawn, drawn[higher], "left")
    return np.where(last > 0, falling[last - 1], np.float32(np.inf))
