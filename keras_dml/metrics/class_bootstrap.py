"""How far rates over pairs would vary with other classes: a bootstrap that draws classes."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keras_dml.metrics.pair_counts import SampledPairs, between

_Floats64 = npt.NDArray[np.float64]


class Resampled(NamedTuple):
    """One value for each drawing of classes, float64 `[r]`, and of each rate `[r, rates]`.

    Attributes:
        thresholds: at which each rate is kept.
        true_match_rates: at those thresholds.
        false_match_rates: at the thresholds of the set as it is.
        equal_error_rates: of the drawing.
    """

    thresholds: _Floats64
    true_match_rates: _Floats64
    false_match_rates: _Floats64
    equal_error_rates: _Floats64


def resampled(
    negative: SampledPairs,
    positive: SampledPairs,
    sizes: npt.NDArray[np.int64],
    farthest: float,
    rates: Sequence[float],
    thresholds: npt.NDArray[np.float32],
    replicates: int,
    seed: int,
    step: Callable[[int], object],
) -> Resampled:
    """Draw as many classes as there are, with replacement, again and again.

    A class that is drawn w times counts w times in its positive pairs, and a negative pair as often
    as the product of its two classes' numbers: all pairs of a class vary together, as they do where
    other classes come. Two draws of one class make no negative pairs.

    Args:
        negative, positive: the pairs.
        sizes: rows of each class, `[classes]`.
        farthest: of `PairScores`.
        rates: false match rates.
        thresholds: of the set as it is, `[rates]`.
        replicates: how many drawings.
        seed: of the drawings.
        step: called with 1 after each.
    """
    classes = len(sizes)
    shape = replicates, len(rates)
    chosen, true_rates, false_rates = (np.full(shape, np.nan) for _ in range(3))
    equal = np.full(replicates, np.nan)
    # Pairs that score at least the threshold come first.
    places = np.searchsorted(-negative.scores, -thresholds, "right")
    # Positive pairs that score at least as high as each negative one.
    matched = np.searchsorted(-positive.scores, -negative.scores, "right")
    pairs = sizes * (sizes - 1.0) / 2
    for replicate in range(replicates):
        rng = np.random.default_rng((seed, replicate))
        drawn = rng.multinomial(classes, np.full(classes, 1 / classes)).astype(np.float64)
        rows = drawn * sizes
        total = (rows.sum() ** 2 - (rows**2).sum()) / 2
        step(1)
        if total <= 0 or (drawn * pairs).sum() <= 0:
            continue
        false = np.concatenate(
            [[0.0], np.cumsum(negative.weights * drawn[negative.first] * drawn[negative.second])]
        )
        true = np.concatenate([[0.0], np.cumsum(positive.weights * drawn[positive.first])])
        false /= total
        true /= max(true[-1], np.finfo(np.float64).tiny)  # a sample may have missed the drawn ones
        # The first pair with which a rate is exceeded: the threshold lies above it.
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


def _next_above(
    scores: npt.NDArray[np.float32], falling: npt.NDArray[np.float32], drawn: _Floats64
) -> npt.NDArray[np.float32]:
    """The next higher score of the pairs that were drawn; infinity where there is none.

    Args:
        scores: to start from.
        falling: of the pairs, `[p]`.
        drawn: the share of all pairs with the first so many, `[p + 1]`: it grows with a drawn one.
    """
    higher = np.searchsorted(-falling, -scores, "left")
    last = np.searchsorted(drawn, drawn[higher], "left")
    return np.where(last > 0, falling[last - 1], np.float32(np.inf))
