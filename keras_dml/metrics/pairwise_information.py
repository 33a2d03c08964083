"""Entropies of embeddings, and mutual information with the classes, from distances of all pairs."""

from __future__ import annotations

import dataclasses

import numpy as np

from keras_dml._common.blocks import slices
from keras_dml._common.extras import needing
from keras_dml._common.types import Float64Array, Int64Array

# Numbers in a block of squared distances, 32 MiB.
_BLOCK = 2**22
# Squared distances below this fraction of their mean are floored, before the logarithm.
_FLOOR = 1e-12
# Gram products lose the digits of distances below this fraction of the root mean square.
_CLOSE = 1e-3
_EQUAL = 1 + 1e-6


@dataclasses.dataclass(frozen=True)
class Estimate:
    """An estimate, and how much it changes with the weight of each row.

    Attributes:
        value: The estimate in nats.
        influence: `[n]`, 0 in the mean. If row i has the weight w_i, the estimate is about
            `value + Σ w_i influence_i / Σ w_i`.
        codes: Class number of each row, int64 `[n]`.
    """

    value: float
    influence: Float64Array
    codes: Int64Array

    @classmethod
    def of(
        cls, value: float, rows: Float64Array, codes: Int64Array, factor: float = 1.0
    ) -> Estimate:
        """Create an estimate from the values of rows. A mean over pairs has the factor 2."""
        finite = np.isfinite(rows).all()
        influence = factor * (rows - rows.mean()) if finite else np.zeros(len(rows))
        return cls(float(value), influence, codes)


@dataclasses.dataclass(frozen=True)
class PairStatistics:
    """Statistics of the distances of each row to the other rows. NaN for a single row.

    Attributes:
        log_distance: Mean of log D over all other rows, `[n]`.
        distance: Mean of D over all other rows, `[n]`.
        class_log_distance: Mean of log D over the other rows of the class, `[n]`.
        neighbors: ψ(n) + ψ(a) − ψ(m) − ψ(n_class) of each row, as in `information`, `[n]`.
        floored: Number of ordered pairs whose distance was floored.
    """

    log_distance: Float64Array
    distance: Float64Array
    class_log_distance: Float64Array
    neighbors: Float64Array
    floored: int


def pair_statistics(rows: Float64Array, codes: Int64Array, k: int) -> PairStatistics:
    """Compute the statistics in one pass over all pairs: n²d time, memory for one block.

    Args:
        rows: `[n, d]`, in the order of the classes.
        codes: Class number of each row, `[n]`, increasing.
        k: Neighbor of the same class whose distance is the radius, at most n_class − 1.
    """
    with needing("run", "information"):
        from scipy.special import digamma

    n = len(rows)
    rows = rows - rows.mean(axis=0)
    squares = np.einsum("nd,nd->n", rows, rows)
    mean_square = 2 * squares.sum() / max(n - 1, 1)
    starts = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]])
    stops = np.r_[starts[1:], n]
    log_distance, distance, class_log, neighbors = (np.full(n, np.nan) for _ in range(4))
    floored = 0
    from keras_dml._common.progress import long_work_bar  # imports tqdm

    with long_work_bar("distances of pairs", n) as bar:
        for block in slices(n, _BLOCK // n):
            first = block.start
            squared = _squared_distances(rows, squares, block, _CLOSE**2 * mean_square)
            floored += int((squared <= _FLOOR * mean_square).sum()) - len(squared)
            log_distance[block] = _mean_log(squared, _FLOOR * mean_square)
            distance[block] = np.sqrt(squared).sum(axis=1) / max(n - 1, 1)
            for start, stop in zip(starts.tolist(), stops.tolist()):
                part = slice(max(start, block.start), min(stop, block.stop))
                size = stop - start
                if part.start >= part.stop or size < 2:
                    continue
                everyone = squared[part.start - first : part.stop - first]
                own = everyone[:, start:stop]
                centered = rows[start:stop] - rows[start:stop].mean(axis=0)
                class_log[part] = _mean_log(own, _FLOOR * 2 * (centered**2).sum() / (size - 1))
                # The row itself is the nearest, at 0.
                nearest = min(k, size - 1)
                radius = np.partition(own, nearest, axis=1)[:, nearest, None] * _EQUAL**2
                of_class, of_all = ((each <= radius).sum(axis=1) - 1 for each in (own, everyone))
                neighbors[part] = digamma(of_class) - digamma(of_all) - digamma(size) + digamma(n)
            bar.update(block.stop - first)
    return PairStatistics(log_distance, distance, class_log, neighbors, floored)


def pair_influence(rows: Float64Array, codes: Int64Array, tables: Float64Array) -> Float64Array:
    """Return the influence of each row on `E⁺[t⁺(D)] + E⁻[t⁻(D)]`, as in `Estimate`, `[n]`.

    Args:
        rows: Unit rows, `[n, d]`.
        codes: Class number of each row, `[n]`. There are pairs of both kinds.
        tables: t⁺ and t⁻ in equal bins over [0, 2], `[2, bins]`.
    """
    n, bins = len(rows), tables.shape[1]
    sums = np.zeros((2, n))
    for block in slices(n, _BLOCK // n):
        distances = np.sqrt(np.maximum(2 - 2 * rows[block] @ rows.T, 0))
        cells = np.minimum((distances * (bins / 2)).astype(np.int64), bins - 1)
        same = codes[block, None] == codes
        values = tables[1 - same.astype(np.int64), cells]
        np.fill_diagonal(values[:, block], 0)
        sums[:, block] = (values * same).sum(axis=1), (values * ~same).sum(axis=1)
    sizes = np.bincount(codes)[codes]
    counts = np.stack([sizes - 1, n - sizes])
    totals = counts.sum(axis=1, keepdims=True)
    influences = (sums - sums.sum(axis=1, keepdims=True) / totals * counts) * n / totals
    # A negative pair has the weights of two rows. Each copy of a class has its own positive pairs.
    return influences[0] + 2 * influences[1]


def _squared_distances(
    rows: Float64Array, squares: Float64Array, block: slice, close: float
) -> Float64Array:
    """Return squared distances `[b, n]`, exact also for close pairs, 0 on the diagonal."""
    squared = squares[block, None] + squares - 2 * rows[block] @ rows.T
    for row, distances in enumerate(squared):
        near = np.flatnonzero(distances <= close)
        distances[near] = ((rows[near] - rows[block.start + row]) ** 2).sum(axis=1)
    return squared


def _mean_log(squared: Float64Array, floor: float) -> Float64Array:
    """Return the mean of log D over all columns but the diagonal; −inf if all rows coincide."""
    others = squared.shape[1] - 1
    if others == 0:
        return np.full(len(squared), np.nan)
    if floor == 0:
        return np.full(len(squared), -np.inf)
    logs = 0.5 * np.log(np.maximum(squared, floor))
    # The diagonal is 0, so it is floored.
    return (logs.sum(axis=1) - 0.5 * np.log(floor)) / others


def ball_volume_term(dimensions: int) -> float:
    """Return (d/2) log π − log Γ(d/2 + 1) + 1, which the entropy index adds to d · mean log D."""
    from scipy.special import gammaln

    half = dimensions / 2
    return float(half * np.log(np.pi) - gammaln(half + 1) + 1)


def uniform_log_distance(dimensions: int) -> float:
    """Return the mean of log D of uniform unit vectors in d dimensions; NaN below d = 2."""
    from scipy.special import digamma

    if dimensions < 2:
        return float("nan")
    one_less = dimensions - 1
    return float(np.log(2) + digamma(one_less / 2) / 2 - digamma(one_less) / 2)


@dataclasses.dataclass(frozen=True)
class WithinClassEntropy:
    """Gaussian bounds on the entropy within classes, in nats.

    Attributes:
        per_class: H_k = (d/2) log(2πe·v_k/d) of each class, `[K]`.
        sizes: Number of rows of each class, `[K]`.
        pooled: (d/2) log(2πe·v/d), at least the average of `per_class`.
        unit_variance: v/2 + (d/2) log 2π, the form of the paper, at least `pooled`.
    """

    per_class: Float64Array
    sizes: Int64Array
    pooled: float
    unit_variance: float

    @property
    def average(self) -> float:
        """The mean of `per_class`, weighted by the sizes: the tightest of the three bounds."""
        return float(np.average(self.per_class, weights=self.sizes))


def within_class_entropy(rows: Float64Array, codes: Int64Array) -> WithinClassEntropy:
    """Compute the bounds in nd time.

    Args:
        rows: `[n, d]`.
        codes: Class numbers 0 to K − 1, `[n]`, each at least twice.
    """
    sizes = np.bincount(codes)
    sums = np.zeros((len(sizes), rows.shape[1]))
    np.add.at(sums, codes, rows)
    spread = ((rows - (sums / sizes[:, None])[codes]) ** 2).sum(axis=1)
    totals, half = np.bincount(codes, spread), rows.shape[1] / 2
    pooled = totals.sum() / (len(rows) - len(sizes))
    with np.errstate(divide="ignore"):
        per_class = half * np.log(np.pi * np.e * totals / (sizes - 1) / half)
        of_all = float(half * np.log(np.pi * np.e * pooled / half))
    return WithinClassEntropy(per_class, sizes, of_all, pooled / 2 + half * np.log(2 * np.pi))
