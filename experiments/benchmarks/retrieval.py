"""Benchmark of the scores of a million embeddings, by ScaNN and exactly."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from experiments.benchmarks import measuring
from experiments.options import Options
from keras_dml._common.types import Neighbors

# Embeddings, classes, and embedding size.
MILLION = (1_000_000, 10_000, 128)
# The number of these embeddings that exact search scores too.
EXACT_IMAGES = 100_000
SCORES = ("recall@1", "recall@10", "map@r", "r_precision")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetrievalOptions(Options):
    """Options of `benchmark retrieval`: none."""

    command = "experiments.benchmark retrieval"
    intro = """Measure the scores of a million synthetic embeddings by ScaNN, with certificates, and
the scores of 100,000 of them by ScaNN and by exact search.

  keras-dml benchmark retrieval
"""


def measure(options: RetrievalOptions) -> Iterator[str]:
    """Yield the lines of the table."""
    heads = [f"{name:>12}" for name in SCORES]
    yield f"{'scores, cosine':<36}{'s':>8}{'MB':>8}{''.join(heads)}"
    many, few = MILLION[0], EXACT_IMAGES
    for count, neighbors in ((many, "scann"), (few, "scann"), (few, "exact")):
        for row in measuring.child_rows(measure_scores, count, neighbors, *MILLION):
            values = [f"{100 * row[name]:>12.2f}" for name in SCORES]
            yield f"{row['what']:<36}{row['s']:>8}{row['MB']:>8}{''.join(values)}"


def clustered(rows: int, classes: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Create embeddings like the embeddings of a trained network.

    The class centers form groups. The embeddings vary mostly in 64 directions.

    Returns:
        Unit float32 embeddings `[rows, size]`, and class numbers `[rows]`.
    """
    rng, shared = np.random.default_rng(1), np.random.default_rng(0)
    others = rng.integers(0, classes, max(0, rows - classes))
    labels = rng.permutation(np.append(np.arange(classes), others))[:rows]
    groups = shared.normal(size=(max(1, classes // 20), 64))
    centers = groups[shared.integers(0, len(groups), classes)]
    centers = (centers + 0.8 * shared.normal(size=(classes, 64))).astype(np.float32)
    basis = (shared.normal(size=(64, size)) / 8).astype(np.float32)
    z = np.empty((rows, size), np.float32)
    for start in range(0, rows, 100_000):
        block = labels[start : start + 100_000]
        inner = centers[block] + 1.1 * rng.standard_normal((len(block), 64), np.float32)
        part = inner @ basis + 0.1 * rng.standard_normal((len(block), size), np.float32)
        z[start : start + len(block)] = part / np.linalg.norm(part, axis=1, keepdims=True)
    return z, labels


def measure_scores(
    count: int, neighbors: Neighbors, images: int, classes: int, size: int
) -> Iterator[measuring.Row]:
    """Yield the row of the scores, and by ScaNN the rows of their certificates.

    Args:
        count: Number of embeddings to score, at most `images`.
        neighbors: "exact" or "scann".
        images, classes, size: As in `clustered`.
    """
    from keras_dml.metrics import evaluate

    z, labels = (array[:count] for array in clustered(images, classes, size))
    before = measuring.resident_megabytes()
    seconds, found = measuring.seconds_of(
        lambda: evaluate(z, labels, [1, 10], "cosine", clustering=False, neighbors=neighbors)
    )
    memory = measuring.peak_megabytes() - before
    numbers = {"s": f"{seconds:.0f}", "MB": f"{memory:.0f}"}
    scores = {name: found[f"{name}/cosine"] for name in SCORES}
    yield {"what": f"{count:,} x {size}, {neighbors}", **numbers, **scores}
    for key, what in (("exact", "exact on a sample"), ("exact_low", "from"), ("exact_high", "to")):
        if neighbors == "scann":
            exact = {name: found[f"{name}/cosine/{key}"] for name in SCORES}
            yield {"what": f"  {what}", "s": "", "MB": "", **exact}
