"""Two passes over all pairs of a set: a histogram, then exact counts and a sample.

The scores are not stored. The passes store, for the pairs of one class and of two classes:

- a histogram over 16 octaves of distance, with 1,024 bins per octave (first pass)
- in some windows of scores, the number of pairs at each float32 score, and above the window
- a random sample that is denser at higher scores, for a bootstrap over classes
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from keras_dml.metrics.pair_scores import PairScores
from keras_dml.metrics.ranks import pair_blocks

_Floats: TypeAlias = npt.NDArray[np.float32]
_Numbers: TypeAlias = npt.NDArray[np.int64]
Window: TypeAlias = tuple[np.float32, np.float32]

# The two kinds of pairs, as indices into every array with an axis of length 2.
NEGATIVE, POSITIVE = 0, 1

# The bits of a float64 above this shift are the bin: the exponent and ten bits of the mantissa.
_SHIFT = 42
_BINS = 16 * 1024
# Number of scores to bin at once.
_IN_CACHE = 2**17
# Number of pending scores before they are counted by value.
_PENDING = 2**21
# Up to this number of pairs of each kind, the sample contains all pairs.
_FEW = 2**20
# Approximate sample sizes: for each part of the high scores (each part is four times as wide as the
# previous one), for the other negative pairs, and for the positive pairs.
_OF_A_PART, _OF_THE_REST, _OF_POSITIVES = 2**16, 2**18, 2**19
# Fraction of the pairs that counts as high scores, where the sample is denser.
_HIGH = 1 / 16
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

    codes: _Numbers
    sizes: _Numbers
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

    scores: _Floats
    first: _Numbers
    second: _Numbers
    weights: npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class WindowCounts:
    """The counts of pairs within a window of scores.

    Attributes:
        window: Lowest and highest score, both inclusive.
        above: Number of negative and of positive pairs with a higher score, int64 `[2]`.
        next_above: Lowest score above the window, or infinity.
        values: All scores that occur in the window, float32 `[v]`, highest first.
        counts: Number of pairs of each kind with each score, int64 `[v, 2]`.
    """

    window: Window
    above: _Numbers
    next_above: np.float32
    values: _Floats
    counts: npt.NDArray[np.int64]

    def after(self) -> npt.NDArray[np.int64]:
        """Return cumulative counts above the window and down to each value, int64 `[v + 1, 2]`."""
        return np.concatenate([self.above[None], self.above + np.cumsum(self.counts, axis=0)])

    def before(self, place: int) -> np.float32:
        """Return the next higher score than `values[place]`, or infinity."""
        return self.values[place - 1] if place else self.next_above


@dataclasses.dataclass(frozen=True)
class Histogram:
    """The result of `count_bins`.

    Attributes:
        counts: Number of pairs of each kind in each bin, nearest bin first, int64 `[2, bins]`.
        lowest: Lowest score in each bin, float32 `[bins]`. The last is -inf.
    """

    counts: npt.NDArray[np.int64]
    lowest: _Floats

    @property
    def matching(self) -> npt.NDArray[np.int64]:
        """Number of pairs of each kind in each bin and all nearer bins, int64 `[2, bins]`."""
        return np.cumsum(self.counts, axis=1)

    def window(self, place: int) -> Window:
        """Return the scores of a bin."""
        if not place:
            return self.lowest[0], np.float32(np.inf)
        return self.lowest[place], np.nextafter(self.lowest[place - 1], np.float32(-np.inf))


def count_bins(rows: LabeledRows) -> Histogram:
    """Count every unordered pair once, by bins of distance."""
    bins = _Bins(rows.scores)
    counts = np.zeros((2, _BINS), np.int64)
    for kind, scores, _ in _pairs_of_a_kind("counting pairs", rows):
        counts[kind] += bins.count(scores)
    return Histogram(counts, bins.lowest())


def count_windows(
    rows: LabeledRows, windows: Sequence[Window], histogram: Histogram, seed: int
) -> tuple[list[WindowCounts], tuple[SampledPairs, SampledPairs]]:
    """Count the pairs in windows of scores exactly, and draw a sample of all pairs.

    Args:
        rows: The rows.
        windows: Windows of scores. Overlapping windows are merged.
        histogram: Histogram of the rows. It determines where the sample becomes denser.
        seed: Seed of the sample.

    Returns:
        `(windows, (negative, positive))`: counts in the merged windows, and samples of the two
        kinds of pairs.
    """
    counted = [_InWindow(window) for window in _merged(windows)]
    sample = _Sample(rows, histogram, seed)
    floor = min(window.low for window in counted)
    for kind, scores, block in _pairs_of_a_kind("counting pairs at the thresholds", rows):
        high = scores[scores >= floor]
        for window in counted:
            window.add(kind, high)
        sample.add(kind, scores, block)
    return [window.counts() for window in counted], (sample.pairs(NEGATIVE), sample.pairs(POSITIVE))


class _Block(NamedTuple):
    """A block of pairs: its rows, its columns, and the places of pairs of a kind. None: all."""

    left: slice
    right: slice
    places: npt.NDArray[np.intp] | None


def _pairs_of_a_kind(description: str, rows: LabeledRows) -> Iterator[tuple[int, _Floats, _Block]]:
    """Yield the kind, the scores `[p]`, and the block of every unordered pair once."""
    codes = rows.codes
    for left, right in pair_blocks(description, len(codes), len(codes), True):
        scores = rows.scores.block(left, right).ravel()
        if codes[left.stop - 1] < codes[right.start]:  # rows are in the order of the classes
            yield NEGATIVE, scores, _Block(left, right, None)
            continue
        same = codes[left, None] == codes[right]
        for kind, mask in ((NEGATIVE, ~same), (POSITIVE, same)):
            places = np.flatnonzero(np.triu(mask, 1) if left == right else mask)
            yield kind, scores[places], _Block(left, right, places)


def _merged(windows: Sequence[Window]) -> list[Window]:
    merged: list[Window] = []
    for low, high in sorted(windows):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged


class _Bins:
    """Bins of distance, or of 1 - similarity, with equal relative width."""

    def __init__(self, scores: PairScores) -> None:
        self._of_similarity = scores.metric == "cosine"
        farthest = np.array([max(scores.farthest, float(np.finfo(np.float32).tiny))])
        self._first = (int(farthest.view(np.int64)[0]) >> _SHIFT) - _BINS + 1
        self._nearest = np.array([self._first << _SHIFT]).view(np.float64)[0]

    def count(self, scores: _Floats) -> _Numbers:
        counts = np.zeros(_BINS, np.int64)
        zero = 1.0 if self._of_similarity else 0.0
        for start in range(0, len(scores), _IN_CACHE):
            part = scores[start : start + _IN_CACHE]
            distances = np.subtract(zero, part, dtype=np.float64)
            np.maximum(distances, self._nearest, out=distances)
            cells = distances.view(np.int64)
            cells >>= _SHIFT
            cells -= self._first
            counts += np.bincount(cells, minlength=_BINS)
        return counts

    def lowest(self) -> _Floats:
        edges = ((np.arange(1, _BINS + 1) + self._first) << _SHIFT).view(np.float64)
        beyond = 1.0 - edges if self._of_similarity else -edges
        # A score beyond the edge belongs to the next bin.
        lowest = beyond.astype(np.float32)
        lowest = np.where(lowest <= beyond, above(lowest), lowest)
        lowest[-1] = -np.inf
        return lowest


def above(scores: _Floats | np.float32) -> _Floats:
    """Return the next float32 above each score."""
    return np.nextafter(scores, np.float32(np.inf), dtype=np.float32)


def between(
    rejected: _Floats | np.float32, accepted: _Floats | np.float32, farthest: float
) -> _Floats:
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


class _InWindow:
    """The counts of pairs in a window, by score."""

    def __init__(self, window: Window) -> None:
        self.low, self.high = window
        self._above = np.zeros(2, np.int64)
        self._next_above = np.float32(np.inf)
        self._values: list[_Floats] = [np.empty(0, np.float32)] * 2
        self._counts: list[_Numbers] = [np.empty(0, np.int64)] * 2
        self._pending: tuple[list[_Floats], list[_Floats]] = ([], [])
        self._waiting = 0

    def add(self, kind: int, scores: _Floats) -> None:
        if not len(scores):
            return
        beyond = scores > self.high
        inside = scores >= self.low
        inside &= ~beyond
        self._above[kind] += np.count_nonzero(beyond)
        self._next_above = np.min(scores, where=beyond, initial=self._next_above)
        self._pending[kind].append(scores[inside])
        self._waiting += len(self._pending[kind][-1])
        if self._waiting > _PENDING:
            self._count()

    def _count(self) -> None:
        for kind, pending in enumerate(self._pending):
            values, numbers = np.unique(np.concatenate([*pending, []]), return_counts=True)
            every = np.concatenate([self._values[kind], values.astype(np.float32)])
            numbers = np.concatenate([self._counts[kind], numbers])
            self._values[kind], places = np.unique(every, return_inverse=True)
            self._counts[kind] = np.zeros(len(self._values[kind]), np.int64)
            np.add.at(self._counts[kind], places, numbers)
            pending.clear()
        self._waiting = 0

    def counts(self) -> WindowCounts:
        self._count()
        values = np.union1d(*self._values)[::-1]
        counts = np.zeros((len(values), 2), np.int64)
        for kind in (NEGATIVE, POSITIVE):
            places = np.searchsorted(-values, -self._values[kind])
            counts[places, kind] = self._counts[kind]
        return WindowCounts((self.low, self.high), self._above, self._next_above, values, counts)


class _Sample:
    """A random sample of pairs, in which negative pairs with high scores are more probable."""

    def __init__(self, rows: LabeledRows, histogram: Histogram, seed: int) -> None:
        self._codes = rows.codes
        self._seed = seed
        negative, positive = rows.totals
        self._levels = np.empty(0, np.float32)
        self._shares = np.empty(0)
        self._rest = [1.0, 1.0]
        if max(negative, positive) > _FEW:
            self._rest = [min(1.0, _OF_THE_REST / negative), min(1.0, _OF_POSITIVES / positive)]
            self._levels, self._shares = _levels(histogram, negative, self._rest[NEGATIVE])
        self._kept: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])

    def add(self, kind: int, scores: _Floats, block: _Block) -> None:
        if not len(scores):
            return
        left, right, places = block
        rng = np.random.default_rng((self._seed, kind, left.start, right.start))
        share = self._rest[kind]
        if share < 1:
            chosen = rng.integers(0, len(scores), rng.binomial(len(scores), share))
        else:
            chosen = np.arange(len(scores))
        weights = np.full(len(chosen), 1 / share)
        if kind == NEGATIVE and len(self._levels):
            low = scores[chosen] < self._levels[-1]
            chosen, weights = chosen[low], weights[low]
            high = np.flatnonzero(scores >= self._levels[-1])
            # The levels decrease: the first is the highest.
            shares = self._shares[np.searchsorted(-self._levels, -scores[high])]
            kept = rng.random(len(high)) < shares
            chosen = np.concatenate([chosen, high[kept]])
            weights = np.concatenate([weights, 1 / shares[kept]])
        drawn = chosen if places is None else places[chosen]
        first, second = np.divmod(drawn, right.stop - right.start)
        self._kept[kind].append(
            np.rec.fromarrays(
                [
                    scores[chosen],
                    self._codes[first + left.start].astype(np.int32),
                    self._codes[second + right.start].astype(np.int32),
                    weights,
                ]
            )
        )

    def pairs(self, kind: int) -> SampledPairs:
        fields = [np.concatenate([block[f"f{i}"] for block in self._kept[kind]]) for i in range(4)]
        order = np.argsort(-fields[0], kind="stable")
        scores, first, second, weights = (field[order] for field in fields)
        return SampledPairs(scores, first, second, weights)


def _levels(
    histogram: Histogram, negative: int, rest: float
) -> tuple[_Floats, npt.NDArray[np.float64]]:
    """Return decreasing score levels, and the sampling rate between each level and the previous."""
    levels, shares = [], []
    number, share = float(_OF_A_PART), 1.0
    matching = histogram.matching[NEGATIVE]
    while number < _HIGH * negative and share > rest:
        levels.append(histogram.lowest[np.searchsorted(matching, number)])
        shares.append(share)
        number, share = 4 * number, share / 4
    return np.array(levels, np.float32), np.array(shares)
