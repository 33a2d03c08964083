"""The distances of positive and of negative pairs as two distributions, and how far apart."""

import dataclasses

import numpy as np

from keras_dml.metrics.recall import check_labels

# Rows whose distances to all others are held at once.
_BLOCK = 1024


@dataclasses.dataclass(frozen=True)
class DistanceHistograms:
    """How often the distances of a set's pairs fall into equal bins over [0, 2].

    Attributes:
        positive: int64 `[bins]`, unordered pairs of one class.
        negative: int64 `[bins]`, unordered pairs of two classes.
    """

    positive: np.ndarray
    negative: np.ndarray

    @property
    def edges(self):
        """Bounds of the bins, `[bins + 1]`."""
        return np.linspace(0.0, 2.0, len(self.positive) + 1)

    def divergence(self):
        """The Jensen-Shannon divergence of the two distributions in nats, from 0 to log 2.

        `½ KL(p ‖ m) + ½ KL(q ‖ m)` with m = (p + q)/2. Binning only lowers it; NaN if there are no
        positive or no negative pairs.

        Reference: Kemertas et al. 2020, section 3.1.
        """
        if not self.positive.any() or not self.negative.any():
            return float("nan")
        p, q = (counts / counts.sum() for counts in (self.positive, self.negative))
        middle = (p + q) / 2
        parts = [
            np.sum(share[share > 0] * np.log(share[share > 0] / middle[share > 0]))
            for share in (p, q)
        ]
        return float(sum(parts) / 2)


def distance_histograms(embeddings, labels, bins=100):
    """The distances between l2-normalised embeddings, counted for the two kinds of pairs.

    Args:
        embeddings: numbers `[n, d]`.
        labels: class of each row, `[n]`.
        bins: number of equal bins over [0, 2], at least 1.

    Returns:
        `DistanceHistograms`; every unordered pair counts once. Takes n²d time, memory n · 1,024.

    Raises:
        ValueError: embeddings that are not finite `[n, d]`, labels that are not `[n]`, `bins`
            below 1.
    """
    z, labels = unit_embeddings(embeddings, labels)
    if bins < 1:
        raise ValueError(f"bins must be at least 1. Received: bins={bins}")
    counts = np.zeros((2, bins), np.int64)
    for start in range(0, len(z), _BLOCK):
        rows = z[start : start + _BLOCK]
        squares = np.sum(rows**2, axis=1)[:, None] + np.sum(z[start:] ** 2, axis=1)
        squares -= 2 * rows @ z[start:].T
        distances = np.sqrt(np.maximum(squares, 0.0))
        cells = np.minimum((distances * (bins / 2)).astype(np.int64), bins - 1)
        later = np.arange(len(rows))[:, None] < np.arange(len(z) - start)
        same = labels[start : start + len(rows), None] == labels[start:]
        cells += bins * ~same
        counts += np.bincount(cells[later], minlength=2 * bins).reshape(2, bins)
    return DistanceHistograms(positive=counts[0], negative=counts[1])


def unit_embeddings(embeddings, labels):
    """The embeddings l2-normalised, float32 `[n, d]`, and labels `[n]`, or ValueError."""
    # Imported here: the package of the indexes needs TensorFlow.
    from keras_dml.retrieval.index import finite_rows, normalised

    rows, labels = finite_rows(embeddings, "embeddings"), np.asarray(labels)
    check_labels("labels", labels, len(rows))
    return normalised(rows), labels
