"""Whether a threshold holds for other classes: calibrated on half of them, tried on the others."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from keras_dml.metrics import verification

HALVES = 20
RATES = (1e-2, 1e-3)


def measure(embeddings: npt.ArrayLike, labels: npt.ArrayLike) -> Iterator[str]:
    """Yields a line for each rate, of embeddings `[n, d]` and the class of each `[n]`."""
    labels = np.unique(np.asarray(labels), return_inverse=True)[1]
    count = int(labels.max()) + 1
    z = np.asarray(embeddings, np.float64)
    z /= np.maximum(np.linalg.norm(z, axis=1, keepdims=True), np.finfo(float).tiny)
    yield f"{len(z):,} images of {count:,} classes, {HALVES} halvings of the classes, cosine"
    yield f"{'asked':>8}{'others, median':>16}{'least':>10}{'most':>10}{'within interval':>18}"
    for rate in RATES:
        found, within = [], 0
        for seed in range(HALVES):
            chosen = np.random.default_rng(seed).permutation(count)[: count // 2]
            first = np.isin(labels, chosen)
            (point,) = verification(z[first], labels[first], [rate], seed=seed).points
            others = _false_match_rate(z[~first], labels[~first], point.threshold)
            low, high = point.false_match_rate_interval
            within += low <= others <= high
            found.append(others)
        yield (
            f"{rate:>8g}{np.median(found):>16.2g}{min(found):>10.2g}{max(found):>10.2g}"
            f"{f'{within} of {HALVES}':>18}"
        )


def _false_match_rate(
    z: npt.NDArray[np.float64], labels: npt.NDArray[np.int64], threshold: float
) -> float:
    matching = pairs = 0
    for start in range(0, len(z), 1024):
        block = slice(start, start + 1024)
        apart = labels[block, None] != labels
        pairs += int(apart.sum())
        matching += int(np.sum(apart & (z[block] @ z.T >= threshold)))
    return matching / pairs
