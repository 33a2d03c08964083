"""Benchmark of thresholds from `metrics.verification`."""

import dataclasses
import pathlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from experiments.benchmarks import measuring
from experiments.benchmarks.retrieval import SOP, clustered
from experiments.options import Options, option

# The 4.5 million pairs of 3,000 rows fit into one curve of scikit-learn.
SAMPLE = 3_000
HALVINGS = 20
RATES = (1e-2, 1e-3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerificationOptions(Options):
    """Options of `benchmark verification`.

    Attributes:
        embeddings: File of numpy.savez with the arrays embeddings [n, d] and labels [n].
    """

    group = "Measured"

    command = "experiments.benchmark verification"
    intro = """Measure thresholds for false match rates over all pairs of 60,502 synthetic
embeddings of size 512, next to scikit-learn's roc_curve on as many pairs as fit.

  python -m experiments.benchmark verification [--embeddings=FILE.npz]

With --embeddings: select thresholds on half of the classes, apply them to the other half, and print
how often the false match rate is in the interval that the first half promised.
"""

    embeddings: pathlib.Path | None = option(None)


def measure(options: VerificationOptions) -> Iterator[str]:
    """Yield the lines of a table."""
    if options.embeddings is not None:
        from experiments.evaluation.labeled_embeddings import embeddings_from_file

        embedded = embeddings_from_file(options.embeddings.expanduser())
        yield from halves(embedded.queries.embeddings, embedded.queries.labels)
        return
    yield f"{'':<36}{'s':>8}"
    for row in measuring.child_rows(measure_thresholds, SAMPLE, *SOP):
        yield f"{row['what']:<36}{row['s']:>8.1f}  {row['note']}"


def measure_thresholds(
    sample: int, images: int, classes: int, size: int
) -> Iterator[measuring.Row]:
    """Yield the rows of scikit-learn and `verification`, of a sample and of all images."""
    from sklearn.metrics import roc_curve

    from keras_dml.metrics import verification

    z, labels = clustered(sample, max(2, classes // 20), size, seed=1)

    def curve() -> float:
        pairs = np.triu_indices(len(z), 1)
        same = (labels[:, None] == labels)[pairs]
        false, true, _ = roc_curve(same, (z @ z.T)[pairs], drop_intermediate=False)
        return float(true[np.flatnonzero(false <= RATES[1])[-1]])

    seconds, rate = measuring.seconds_of(curve)
    note = f"TMR {100 * rate:.4f} % at FMR {RATES[1]:g}"
    yield {"what": f"roc_curve, {sample:,} rows", "s": seconds, "note": note}
    seconds, found = measuring.seconds_of(lambda: verification(z, labels, RATES[1:]))
    note = f"TMR {100 * found.points[0].true_match_rate:.4f} %, with intervals"
    yield {"what": f"verification, {sample:,} rows", "s": seconds, "note": note}
    z, labels = clustered(images, classes, size, seed=1)
    before = measuring.resident_megabytes()
    for metric in ("cosine", "l2"):
        seconds, found = measuring.seconds_of(lambda: verification(z, labels, metric=metric))  # noqa: B023
        note = f"{found.negative_pairs + found.positive_pairs:,} pairs (goal 60 s), "
        note += f"{measuring.peak_megabytes() - before:,.0f} MB beyond the embeddings"
        yield {"what": f"verification, {images:,} x {size}, {metric}", "s": seconds, "note": note}


def halves(embeddings: npt.ArrayLike, labels: npt.ArrayLike) -> Iterator[str]:
    """Yield a line for each rate: thresholds of half of the classes, applied to the others."""
    from keras_dml.metrics import verification

    labels = np.unique(np.asarray(labels), return_inverse=True)[1]
    count = int(labels.max()) + 1
    z = np.asarray(embeddings, np.float64)
    z /= np.maximum(np.linalg.norm(z, axis=1, keepdims=True), np.finfo(float).tiny)
    yield f"{len(z):,} images of {count:,} classes, {HALVINGS} halvings of the classes, cosine"
    yield f"{'rate':>8}{'others, median':>16}{'lowest':>10}{'highest':>10}{'within interval':>18}"
    for rate in RATES:
        found, within = [], 0
        for seed in range(HALVINGS):
            chosen = np.random.default_rng(seed).permutation(count)[: count // 2]
            first = np.isin(labels, chosen)
            (point,) = verification(z[first], labels[first], [rate], seed=seed).points
            others = _false_match_rate(z[~first], labels[~first], point.threshold)
            low, high = point.false_match_rate_interval
            within += low <= others <= high
            found.append(others)
        yield (
            f"{rate:>8g}{np.median(found):>16.2g}{min(found):>10.2g}{max(found):>10.2g}"
            f"{f'{within} of {HALVINGS}':>18}"
        )


def _false_match_rate(
    z: npt.NDArray[np.float64], labels: npt.NDArray[np.int64], threshold: float
) -> float:
    matching = pairs = 0
    for start in range(0, len(z), 1024):
        block = slice(start, start + 1024)
        negative = labels[block, None] != labels
        pairs += int(negative.sum())
        matching += int(np.sum(negative & (z[block] @ z.T >= threshold)))
    return matching / pairs
