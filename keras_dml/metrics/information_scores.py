"""Information of embeddings about their classes, in nats, with intervals."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from keras_dml._common.checks import as_array, check_number, check_seed, check_whole, shown
from keras_dml._common.errors import ArgumentError
from keras_dml._common.rows import finite_rows
from keras_dml._common.types import Float32Array, Float64Array, Int64Array
from keras_dml.metrics.distances import distance_histograms
from keras_dml.metrics.linear_probe import information_probe
from keras_dml.metrics.mutual_information import mutual_information_bound, random_halves
from keras_dml.metrics.pairwise_information import (
    Estimate,
    PairStatistics,
    ball_volume_term,
    pair_influence,
    pair_statistics,
    uniform_log_distance,
    within_class_entropy,
)
from keras_dml.metrics.relevance import checked_labels, class_numbers

FITTED = ("information_probe/cosine", "information_probe/l2", "information_distances")
"""Names of the scores that fit a classifier or a network."""
INFORMATION = (
    "class_entropy",
    "entropy_pairwise/l2",
    "entropy_uniformity/cosine",
    "mean_distance/l2",
    "entropy_within/l2",
    "information_neighbors/cosine",
    "information_neighbors/l2",
    "information_generative/l2",
    "jensen_shannon",
    *FITTED,
)
"""Names of the scores of `information`."""
# Bins of the fitted network's values over the distances.
_BINS = 1000


def information(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    scores: Iterable[str] | None = None,
    *,
    neighbors: int = 3,
    rows: int | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """Compute entropies of embeddings Z, and their mutual information with the classes Y, in nats.

    With n rows, d dimensions, distances D, and the entropy `H(Y) = −Σ p_k log p_k`:

    - `class_entropy`: H(Y). Every I(Z; Y) is from 0 to H(Y). Estimates are not clipped, so a value
      outside shows the error of the estimate.
    - `entropy_pairwise/l2`: an index of H(Z), `d · mean_{i≠j} log D_ij + (d/2) log π −
      log Γ(d/2 + 1) + 1`. Only compare equal d: the index of a Gaussian exceeds H(Z) by about
      (d/2) log 2.
    - `entropy_uniformity/cosine`: the mean of log D of unit vectors, minus its value for the
      uniform distribution. 0 for uniform unit vectors, and below 0 for others.
    - `mean_distance/l2`: the mean of D over all pairs.
    - `entropy_within/l2`: a Gaussian bound on H(Z|Y), the mean of `(d/2) log(2πe·v_k/d)` with the
      variance v_k of each class. −∞ if a class has no variance.
    - `information_neighbors`: an estimate of I(Z; Y) by nearest neighbors,
      `ψ(n) + mean_i [ψ(a_i) − ψ(m_i) − ψ(n_class)]`. Within the distance to the k-th nearest row of
      its class, row i has a_i other rows of its class and m_i other rows. High dimensions lower it.
    - `information_generative/l2`: an index, `entropy_pairwise/l2` minus its mean within classes. It
      has no upper limit.
    - `jensen_shannon`: the divergence of the distances of `distance_histograms`.
    - `information_probe`: a lower bound on I(Z; Y), `H(Y) − E[−log q(Y|Z)]`. A linear classifier q
      is fitted on one half of each class and scored on the other. The bound is low by about
      (K − 1)(d + 1)/n nats for K classes, and a value below 0 is no evidence.
    - `information_distances`: the bound of `mutual_information_bound`.

    All values describe these rows. Classes with one row (three rows for `information_probe`) are
    left out of the scores that compare rows of a class.

    The scores of pairs take n²d time and the memory of one block: about 2 seconds for 4,096 rows of
    128 dimensions on 2 cores. `information_probe` takes about 26 fits of 4ndK operations for each
    iteration, and `information_distances` 1,000 training steps.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[0, 0], [1, 0], [0, 2], [4, 4]])
        >>> found = information(z, labels, ["entropy_pairwise/l2", "entropy_within/l2"])
        >>> {name: round(value, 6) for name, value in found.items()}
        {'entropy_pairwise/l2': 4.257409, 'entropy_within/l2': 2.949449}

    Args:
        embeddings: Numbers `[n, d]`.
        labels: Class of each row, `[n]`, at least two classes, one with two rows.
        scores: Names of scores. The default is all of them.
        neighbors: k, at least 1. A class with fewer other rows uses their number.
        rows: Largest number of rows. If there are more, whole classes are drawn by the seed, at
            least two. The default is all rows.
        seed: Seed of the halves, of the drawn classes, and of the statistics network.

    Returns:
        `{name: nats}`, float64. NaN for a score that needs more rows of a class.

    Raises:
        ValueError: Shapes are wrong, embeddings are not finite, a name is unknown, there are fewer
            than two classes, or no class has two rows.
        MissingExtraError: SciPy is not installed.

    References: Boudiaf et al., "A unifying mutual information view of metric learning", ECCV 2020,
    Eq. 3 to 7, 35 and 36; Ross, "Mutual information between discrete and continuous data sets",
    PLoS ONE 2014; Wang et al., "Nonparametric divergence estimation", 2009.
    """
    found = _estimates(embeddings, labels, scores, neighbors, rows, seed, influences=False)
    return {name: estimate.value for name, estimate in found.items()}


def information_intervals(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    scores: Iterable[str] | None = None,
    *,
    neighbors: int = 3,
    rows: int | None = None,
    replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """Return an interval of each score of `information` by a bootstrap over classes.

    A resampling draws as many classes as there are, with replacement. The score of a resampling is
    linearized: each row changes the score by its influence on the original rows, and nothing is
    fitted again. The cost is therefore the cost of `information`, plus one pass over the pairs each
    for `jensen_shannon` and `information_distances`. The intervals of `information_neighbors` are
    up to 40 % too narrow for few classes, because a new class also changes the neighbors of the
    others.

    Examples:
        >>> labels = np.repeat(np.arange(20), 5)
        >>> z = np.eye(20)[labels] + 0.3 * np.random.default_rng(0).normal(size=(100, 20))
        >>> low, high = information_intervals(z, labels, ["mean_distance/l2"])["mean_distance/l2"]
        >>> low < information(z, labels, ["mean_distance/l2"])["mean_distance/l2"] < high
        True

    Args:
        embeddings, labels, scores, neighbors, rows, seed: As in `information`.
        replicates: Number of resamplings.
        level: Share of the resamplings within the interval, between 0 and 1.

    Returns:
        `{name: (low, high)}`. NaN for a score that is not finite.

    Raises:
        ValueError: As in `information`. Also if `replicates` or `level` is out of range.
    """
    replicates = check_whole("replicates", replicates, least=1)
    level = check_number("level", level, above=0, below=1)
    found = _estimates(embeddings, labels, scores, neighbors, rows, seed, influences=True)
    intervals = {}
    for name, estimate in found.items():
        if not np.isfinite(estimate.value):
            intervals[name] = (float("nan"), float("nan"))
            continue
        sizes = np.bincount(estimate.codes)
        totals = np.bincount(estimate.codes, estimate.influence)[sizes > 0]
        sizes = sizes[sizes > 0]
        shares = np.full(len(sizes), 1 / len(sizes))
        drawn = np.random.default_rng([seed, 3]).multinomial(len(sizes), shares, replicates)
        values = estimate.value + drawn @ totals / (drawn @ sizes)
        low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
        intervals[name] = (float(low), float(high))
    return intervals


def _estimates(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    scores: Iterable[str] | None,
    neighbors: int,
    rows: int | None,
    seed: int,
    influences: bool,
) -> dict[str, Estimate]:
    """Return each estimate.

    Without `influences`, the scores of distributions of distances skip theirs, which take another
    pass over the pairs.
    """
    names = INFORMATION if scores is None else [scores] if isinstance(scores, str) else scores
    unknown = [name for name in names if name not in INFORMATION]
    if unknown:
        raise ArgumentError(
            f"scores must be of {', '.join(INFORMATION)}, but got {shown(unknown[0])}."
        )
    neighbors, seed = check_whole("neighbors", neighbors, least=1), check_seed("seed", seed)
    float32 = finite_rows(embeddings, "embeddings")
    given = checked_labels("labels", labels, len(float32))
    # Sorted by class. `as_array` keeps the digits of float64.
    order = np.argsort(given, kind="stable")
    codes = class_numbers(given[order]) if len(given) else np.zeros(0, np.int64)
    if rows is not None:
        kept = whole_classes(codes, check_whole("rows", rows, least=2), seed)
        order, codes = order[kept], class_numbers(codes[kept])
    sizes = np.bincount(codes)
    if len(sizes) < 2 or sizes.max() < 2:
        raise ArgumentError(
            "labels must have at least two classes, one of them with two rows, but got "
            f"{len(codes)} rows of {len(sizes)} classes."
        )
    z = as_array("embeddings", embeddings).astype(np.float64)[order]
    several = np.flatnonzero(sizes[codes] > 1)
    found: dict[str, Estimate] = {}
    for metric in ("l2", "cosine"):
        own = {name for name in names if name.endswith(metric)}
        points = z if metric == "l2" else _unit(z)
        if f"information_probe/{metric}" in own:
            found[f"information_probe/{metric}"] = information_probe(points, codes, seed)
        if own - set(FITTED):
            found |= _of_pairs(points, codes, several, metric, neighbors)
    shares = sizes / sizes.sum()
    found["class_entropy"] = Estimate.of(-(shares @ np.log(shares)), -np.log(shares)[codes], codes)
    unit = _unit(z)
    if "jensen_shannon" in names:
        histograms = distance_histograms(float32[order], codes)
        tables = histograms.divergence_of_bins()
        influence = pair_influence(unit, codes, tables) if influences else np.zeros(len(codes))
        found["jensen_shannon"] = Estimate(histograms.divergence(), influence, codes)
    if "information_distances" in names:
        found["information_distances"] = _of_network(float32[order], unit, codes, seed, influences)
    return {name: found[name] for name in names}


def _of_network(
    float32: Float32Array, unit: Float64Array, codes: Int64Array, seed: int, influences: bool
) -> Estimate:
    """Return the bound of a fitted network, whose weights do not change with the classes."""
    _, scored = random_halves(len(codes), seed)
    influence = np.zeros(len(scored))
    try:
        found = mutual_information_bound(float32, codes, seed=seed)
    except ArgumentError:  # a random half has no pairs of a kind
        return Estimate(float("nan"), influence, codes[scored])
    if influences:
        from keras import ops

        from keras_dml._pairwise.divergence import negative_costs, positive_costs

        centers = (np.arange(_BINS, dtype=np.float32) + 0.5) * 2 / _BINS
        values = found.network(ops.convert_to_tensor(centers[:, None]))[:, 0]
        costs = [ops.convert_to_numpy(of(values)) for of in (positive_costs, negative_costs)]
        influence = pair_influence(unit[scored], codes[scored], -np.stack(costs))
    return Estimate(found.nats, influence, codes[scored])


def _of_pairs(
    z: Float64Array, codes: Int64Array, several: Int64Array, metric: str, neighbors: int
) -> dict[str, Estimate]:
    """Return the estimates of one metric that come from distances of pairs."""
    d = z.shape[1]
    everyone = pair_statistics(z, codes, neighbors)
    own = class_numbers(codes[several])
    matched: PairStatistics = everyone
    if len(several) < len(z):
        matched = pair_statistics(z[several], own, neighbors)
    info, logs = matched.neighbors, everyone.log_distance
    found = {f"information_neighbors/{metric}": Estimate.of(info.mean(), info, own)}
    if metric == "cosine":
        uniformity = logs.mean() - uniform_log_distance(d)
        found["entropy_uniformity/cosine"] = Estimate.of(uniformity, logs, codes, 2)
        return found
    index = d * logs.mean() + ball_volume_term(d)
    found["entropy_pairwise/l2"] = Estimate.of(index, d * logs, codes, 2)
    distances = everyone.distance
    found["mean_distance/l2"] = Estimate.of(distances.mean(), distances, codes, 2)
    within = within_class_entropy(z[several], own)
    found["entropy_within/l2"] = Estimate.of(within.average, within.per_class[own], own)
    of_classes = np.bincount(own, matched.class_log_distance) / np.bincount(own)
    with np.errstate(invalid="ignore"):  # −∞ − (−∞) of embeddings that coincide
        gains = 2 * d * matched.log_distance - d * of_classes[own]
        value = d * (matched.log_distance.mean() - of_classes[own].mean())
    found["information_generative/l2"] = Estimate.of(value, gains, own)
    return found


def _unit(z: Float64Array) -> Float64Array:
    lengths = np.linalg.norm(z, axis=1, keepdims=True)
    return z / np.where(lengths > 0, lengths, 1.0)


def whole_classes(codes: Int64Array, most: int, seed: int) -> Int64Array:
    """Return the rows of whole classes, chosen by the seed: at most `most`, of two classes or more.

    Args:
        codes: Class numbers from 0, `[n]`.
        most: Largest number of rows.
        seed: Seed of the choice.
    """
    if len(codes) <= most:
        return np.arange(len(codes))
    order = np.random.default_rng([seed, 4]).permutation(codes.max() + 1)
    totals = np.cumsum(np.bincount(codes)[order])
    chosen = order[: max(2, int(np.searchsorted(totals, most, "right")))]
    return np.flatnonzero(np.isin(codes, chosen))
