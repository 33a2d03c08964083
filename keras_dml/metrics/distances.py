"""Distributions of the distances of positive and of negative pairs, and their divergence."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from keras_dml._common.checks import check_whole
from keras_dml._common.errors import as_array
from keras_dml._common.rows import normalized
from keras_dml._common.types import Float64Array, Int64Array
from keras_dml.metrics.pair_scores import PairScores, pair_blocks
from keras_dml.metrics.relevance import checked_sets

# float32 distances cannot distinguish more bins.
_MOST_BINS = 2**24
# Queries of a sample.
_HISTOGRAM_QUERIES = 2_000


@dataclasses.dataclass(frozen=True)
class DistanceHistograms:
    """Histograms of the distances of a set's pairs, in equal bins over [0, 2].

    Examples:
        >>> found = DistanceHistograms(np.array([2, 0]), np.array([0, 4]))
        >>> round(found.divergence(), 3)
        0.693

    Attributes:
        positive: int64 `[bins]`, unordered pairs of the same class.
        negative: int64 `[bins]`, unordered pairs of different classes.
    """

    positive: Int64Array
    negative: Int64Array

    @property
    def edges(self) -> Float64Array:
        """Bounds of the bins, `[bins + 1]`."""
        return np.linspace(0.0, 2.0, len(self.positive) + 1)

    def divergence(self) -> float:
        """Compute the Jensen-Shannon divergence of the two distributions in nats, from 0 to log 2.

        `½ KL(p ‖ m) + ½ KL(q ‖ m)` with m = (p + q)/2. Binning can only lower it. NaN without
        positive or without negative pairs.

        Reference: Kemertas et al. 2020, section 3.1.
        """
        if not self.positive.any() or not self.negative.any():
            return float("nan")
        counts = np.stack([self.positive, self.negative])
        shares = counts / counts.sum(axis=1, keepdims=True)
        return float((shares * self.divergence_of_bins()).sum())

    def divergence_of_bins(self) -> Float64Array:
        """Return `½ log(p/m)` and `½ log(q/m)` of each bin, `[2, bins]`; 0 for an empty bin."""
        counts = np.stack([self.positive, self.negative])
        shares = counts / counts.sum(axis=1, keepdims=True)
        ratios = np.divide(shares, shares.mean(axis=0), out=np.ones_like(shares), where=shares > 0)
        return np.log(ratios) / 2


def distance_histograms(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    bins: int = 100,
    gallery: npt.ArrayLike | None = None,
    gallery_labels: npt.ArrayLike | None = None,
) -> DistanceHistograms:
    """Count the distances between l2-normalized embeddings for the two kinds of pairs.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 3, 0], [-4, 0, 3], [0, 0, 5]], "float32") / 5
        >>> found = distance_histograms(z, labels, bins=4)
        >>> found.positive, found.negative
        (array([1, 1, 0, 0]), array([0, 0, 2, 2]))

    Args:
        embeddings: Numbers `[n, d]`.
        labels: Class of each row, `[n]`.
        bins: Number of equal bins over [0, 2], from 1 to 2²⁴.
        gallery: Numbers `[m, d]`. If set, each pair is a row and a row of the gallery.
        gallery_labels: Class of each row of the gallery, `[m]`.

    Returns:
        `DistanceHistograms`. Without a gallery, every unordered pair counts once. Takes n²d time
        (n·m·d), and memory for 1,024² pairs. Each distance is exact to float32, and 0 for identical
        rows.

    Raises:
        ValueError: `bins` is out of range. Also as in `recall_at_k`.
    """
    queries, items, codes, item_codes = checked_sets(
        embeddings, labels, gallery, gallery_labels, "cosine"
    )
    bins = check_whole("bins", bins, least=1, most=_MOST_BINS)
    own_rows = gallery is None
    scores = PairScores(normalized(queries), "l2", None if own_rows else normalized(items))
    counts = np.zeros((2, bins), np.int64)
    for rows, columns in pair_blocks("distances of pairs", len(queries), len(items), own_rows):
        distances = scores.block(rows, columns)
        distances *= -bins / 2
        cells = np.minimum(distances.astype(np.int32), bins - 1)
        cells += bins * (codes[rows, None] != item_codes[columns])
        if own_rows and columns == rows:
            cells = cells[np.triu_indices(len(cells), 1)]
        counts += np.bincount(cells.ravel(), minlength=2 * bins).reshape(2, bins)
    return DistanceHistograms(positive=counts[0], negative=counts[1])


def sampled_divergence(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    gallery: npt.ArrayLike | None = None,
    gallery_labels: npt.ArrayLike | None = None,
    *,
    seed: int = 0,
) -> float:
    """Compute the divergence of `distance_histograms` from the pairs of 2,000 random queries.

    Args:
        embeddings, labels, gallery, gallery_labels: As in `recall_at_k`.
        seed: Seed of the sample.
    """
    rows, classes = as_array("embeddings", embeddings), as_array("labels", labels)
    number = min(_HISTOGRAM_QUERIES, len(rows))
    sample = np.random.default_rng(seed).choice(len(rows), number, replace=False)
    own_rows = gallery is None
    if own_rows:
        gallery, gallery_labels = rows, classes
    found = distance_histograms(
        rows[sample], classes[sample], gallery=gallery, gallery_labels=gallery_labels
    )
    positive = found.positive.copy()
    positive[0] -= number * own_rows  # the distance of each query to itself is 0
    return DistanceHistograms(positive, found.negative).divergence()
