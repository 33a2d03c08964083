"""Two passes over all pairs of a set: a histogram, then exact counts and a sample.

The scores are not stored. The passes store, for the pairs of one class and of two classes:

- a histogram over 16 octaves of distance, with 1,024 bins per octave (first pass)
- in some of the bins, the number of pairs at each float32 score
- a random sample with all pairs of the highest scores, for a bootstrap over classes
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from keras_dml._common.types import BoolArray, Float32Array, Float64Array, Int64Array
from keras_dml.metrics.pair_scores import PairScores, pair_blocks

# A block of pairs: its rows, its columns, and the places of pairs of a kind. None: all.
_Block: TypeAlias = tuple[slice, slice, npt.NDArray[np.intp] | None]

# The two kinds of pairs, as indices into every array with an axis of length 2.
NEGATIVE, POSITIVE = 0, 1

# The bits of a float64 above this shift are the bin: the exponent and ten bits of the mantissa.
_SHIFT = 42
_BINS = 16 * 1024
# Up to this number of pairs of each kind, the sample contains all pairs.
_FEW = 2**20
# Sample sizes: at most the negative pairs with the highest scores, and about as many of the other
# negative pairs and of the positive pairs.
_HIGHEST, _OF_THE_REST, _OF_POSITIVES = 2**19, 2**18, 2**19
# Distance of a threshold above the highest score, relative to the farthest score, so that no pair
# reaches it. A float32 sum of products that is computed elsewhere rarely has a larger error.
_ROUNDING = 2.0**-21


@dataclasses.dataclass(frozen=True)
class LabeledRows:
    """Rows in the order of their classes.

    Attributes:
        codes: Class number of each row, from 0, int64 `[n]`, ascending.
        sizes: Number of rows in each class, int64 `[classes]`.
        scores: Pair scores of the rows in that order.
    """

    codes: Int64Array
    sizes: Int64Array
    scores: PairScores

    @property
    def totals(self) -> tuple[int, int]:
        """Number of negative pairs and of positive pairs."""
        sizes = [int(size) for size in self.sizes]
        positive = sum(size * (size - 1) // 2 for size in sizes)
        return sum(sizes) * (sum(sizes) - 1) // 2 - positive, positive


@dataclasses.dataclass(frozen=True)
class SampledPairs:
    """Pairs drawn at random, with the number of pairs that each represents.

    Attributes:
        scores: float32 `[p]`, highest first.
        first, second: Class numbers of the two rows, `[p]`.
        weights: float64 `[p]`, the number of pairs that each pair represents.
    """

    scores: Float32Array
    first: Int64Array
    second: Int64Array
    weights: Float64Array


class Histogram:
    """Counts of pairs in bins of distance, or of 1 - similarity, with equal relative width.

    Args:
        scores: Pair scores of the rows.

    Attributes:
        counts: Number of pairs of each kind in each bin, nearest first, int64 `[2, bins]`.
    """

    def __init__(self, scores: PairScores) -> None:
        self.counts = np.zeros((2, _BINS), np.int64)
        self._of_similarity = scores.metric == "cosine"
        farthest = np.array([max(scores.farthest, float(np.finfo(np.float32).tiny))])
        self._first = (int(farthest.view(np.int64)[0]) >> _SHIFT) - _BINS + 1
        self._nearest = np.array([self._first << _SHIFT]).view(np.float64)[0]

    def bins_of(self, scores: Float32Array) -> Int64Array:
        """Return the bin of each score."""
        distances = np.subtract(1.0 if self._of_similarity else 0.0, scores, dtype=np.float64)
        np.maximum(distances, self._nearest, out=distances)
        cells = distances.view(np.int64)
        cells >>= _SHIFT
        cells -= self._first
        return cells

    @functools.cached_property
    def matching(self) -> Int64Array:
        """Number of pairs of each kind in each bin and all nearer bins, int64 `[2, bins]`."""
        return np.cumsum(self.counts, axis=1)

    @functools.cached_property
    def lowest(self) -> Float32Array:
        """Lowest score in each bin, float32 `[bins]`. The last is -inf."""
        edges = ((np.arange(1, _BINS + 1) + self._first) << _SHIFT).view(np.float64)
        beyond = 1.0 - edges if self._of_similarity else -edges
        # A score beyond the edge belongs to the next bin.
        lowest = beyond.astype(np.float32)
        lowest = np.where(lowest <= beyond, above(lowest), lowest)
        lowest[-1] = -np.inf
        return lowest

    def with_previous(self, places: Iterable[int]) -> BoolArray:
        """Select bins, and for each the next nearer bin with pairs, bool `[bins]`."""
        selected = np.zeros(_BINS, bool)
        occupied = np.flatnonzero(self.counts.any(axis=0))
        for place in places:
            selected[place] = selected[occupied[occupied < place][-1:]] = True
        return selected


def count_bins(rows: LabeledRows) -> Histogram:
    """Count every unordered pair once, by bins of distance."""
    histogram = Histogram(rows.scores)
    for kind, scores, _ in _pairs_of_a_kind("counting pairs", rows):
        histogram.counts[kind] += np.bincount(histogram.bins_of(scores), minlength=_BINS)
    return histogram


def count_values(
    rows: LabeledRows, places: Iterable[int], histogram: Histogram, seed: int
) -> tuple[Float32Array, Int64Array, tuple[SampledPairs, SampledPairs]]:
    """Count the pairs by score in some bins, and draw a sample of all pairs.

    Args:
        rows: The rows.
        places: Numbers of the bins. The next nearer bin with pairs is counted, too, so that the
            next higher score of each score in the bins is known.
        histogram: Histogram of the rows.
        seed: Seed of the sample.

    Returns:
        The scores that occur in the bins, float32 `[v]`, highest first. The number of pairs of each
        kind with at least this score, int64 `[2, v]`. Samples of the negative and of the positive
        pairs.
    """
    selected = histogram.with_previous(places)
    floor = histogram.lowest[np.flatnonzero(selected)[-1]]
    values, counts = np.empty(0, np.float32), np.zeros((2, 0), np.int64)
    sample = _Sample(rows, histogram, seed)
    for kind, scores, block in _pairs_of_a_kind("counting pairs at the thresholds", rows):
        high = scores[scores >= floor]
        values, counts = _added(values, counts, kind, high[selected[histogram.bins_of(high)]])
        sample.add(kind, scores, block)
    values, counts = values[::-1], counts[:, ::-1]
    cells = histogram.bins_of(values)
    so_far = np.cumsum(counts, axis=1)
    # The pairs in nearer bins, and the pairs with higher scores in the same bin.
    first = np.searchsorted(cells, cells)
    nearer = (histogram.matching - histogram.counts)[:, cells]
    matching = nearer + so_far - (so_far - counts)[:, first]
    return values, matching, (sample.pairs(NEGATIVE), sample.pairs(POSITIVE))


def _added(
    values: Float32Array, counts: Int64Array, kind: int, scores: Float32Array
) -> tuple[Float32Array, Int64Array]:
    """Add the scores of pairs of a kind to different scores, ascending, and their counts."""
    found, numbers = np.unique(scores, return_counts=True)
    every = np.union1d(values, found)
    grown = np.zeros((2, len(every)), np.int64)
    grown[:, np.searchsorted(every, values)] = counts
    grown[kind, np.searchsorted(every, found)] += numbers
    return every, grown


def _pairs_of_a_kind(
    description: str, rows: LabeledRows
) -> Iterator[tuple[int, Float32Array, _Block]]:
    """Yield the kind, the scores `[p]`, and the block of every unordered pair once."""
    codes = rows.codes
    for left, right in pair_blocks(description, len(codes), len(codes), True):
        scores = rows.scores.block(left, right).ravel()
        if codes[left.stop - 1] < codes[right.start]:  # rows are in the order of the classes
            yield NEGATIVE, scores, (left, right, None)
            continue
        same = codes[left, None] == codes[right]
        for kind, mask in ((NEGATIVE, ~same), (POSITIVE, same)):
            places = np.flatnonzero(np.triu(mask, 1) if left == right else mask)
            yield kind, scores[places], (left, right, places)


def above(scores: Float32Array | np.float32) -> Float32Array:
    """Return the next float32 above each score."""
    return np.nextafter(scores, np.float32(np.inf), dtype=np.float32)


def between(
    rejected: Float32Array | np.float32, accepted: Float32Array | np.float32, farthest: float
) -> Float32Array:
    """Return thresholds halfway between neighboring scores and above the lower score, float32.

    A pair then stays on its side of the threshold if its score changes slightly, for example in
    other batches or on another backend.

    Args:
        rejected: The lower score of each pair of neighboring scores.
        accepted: The higher score, or infinity.
        farthest: Farthest score, as in `PairScores`.
    """
    low, high = np.asarray(rejected, np.float64), np.asarray(accepted, np.float64)
    halfway = np.where(np.isinf(high), low + _ROUNDING * farthest, (low + high) / 2)
    # Between two adjacent float32 numbers, the threshold is the higher one.
    return np.maximum(halfway.astype(np.float32), above(rejected))


class _Sample:
    """A random sample of pairs, with all negative pairs of the highest scores."""

    def __init__(self, rows: LabeledRows, histogram: Histogram, seed: int) -> None:
        self._codes, self._seed = rows.codes, seed
        negative, positive = rows.totals
        self._shares, self._high = [1.0, 1.0], np.float32(np.inf)
        if max(negative, positive) > _FEW:
            self._shares = [min(1.0, _OF_THE_REST / negative), min(1.0, _OF_POSITIVES / positive)]
            place = int(np.searchsorted(histogram.matching[NEGATIVE], _HIGHEST))
            self._high = histogram.lowest[place - 1] if place else self._high
        self._kept: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])

    def add(self, kind: int, scores: Float32Array, block: _Block) -> None:
        left, right, places = block
        rng = np.random.default_rng((self._seed, kind, left.start, right.start))
        share = self._shares[kind]
        if share < 1 and len(scores):
            chosen = rng.integers(0, len(scores), rng.binomial(len(scores), share))
        else:
            chosen = np.arange(len(scores))
        weights = np.full(len(chosen), 1 / share)
        if kind == NEGATIVE and np.isfinite(self._high):
            low = scores[chosen] < self._high
            high = np.flatnonzero(scores >= self._high)
            chosen = np.concatenate([chosen[low], high])
            weights = np.concatenate([weights[low], np.ones(len(high))])
        drawn = chosen if places is None else places[chosen]
        first, second = np.divmod(drawn, right.stop - right.start)
        classes = (self._codes[first + left.start], self._codes[second + right.start])
        fields = [scores[chosen], *(each.astype(np.int32) for each in classes), weights]
        self._kept[kind].append(np.rec.fromarrays(fields))

    def pairs(self, kind: int) -> SampledPairs:
        fields = [np.concatenate([block[f"f{i}"] for block in self._kept[kind]]) for i in range(4)]
        order = np.argsort(-fields[0], kind="stable")
        return SampledPairs(*(field[order] for field in fields))
