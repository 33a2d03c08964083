"""Benchmark of the bias and the time of `metrics.information`."""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from experiments.benchmarks.measuring import seconds_of
from experiments.benchmarks.retrieval import clustered
from experiments.options import Options, option

_CLASSES = 10
_SCORES = (
    "entropy_pairwise/l2",
    "entropy_within/l2",
    "information_neighbors/l2",
    "information_generative/l2",
    "information_probe/l2",
)
# Draws of the mixture for its exact information. The error is below 0.01.
_DRAWS = 20_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class InformationOptions(Options):
    """Options of `benchmark information`.

    Attributes:
        rows: Numbers of rows.
        dimensions: Numbers of dimensions.
        seeds: Number of mixtures of each kind.
        timed_rows: Rows whose scores are timed.
    """

    group = "Measured"

    command = "experiments.benchmark information"
    intro = """Measure the bias of the scores of information on mixtures of ten Gaussians, by the
number of rows and of dimensions, and the time of the scores of pairs.

  python -m experiments.benchmark information
"""

    rows: tuple[str, ...] = option(("100", "300", "1000", "3000"))
    dimensions: tuple[str, ...] = option(("2", "8", "32", "128"))
    seeds: int = option(5, lower_bound=1)
    timed_rows: int = option(4096, lower_bound=20)


def measure(options: InformationOptions) -> Iterator[str]:
    """Yield the lines of a table: the mean difference to the exact value, in nats."""
    from keras_dml.metrics import information

    columns = "".join(f"{name.removesuffix('/l2'):>24}" for name in _SCORES)
    yield f"{'rows':>6}{'d':>6}{'I(Z; Y)':>9}{columns}"
    for dimensions in map(int, options.dimensions):
        for rows in map(int, options.rows):
            gaps, exact = [], []
            for seed in range(options.seeds):
                z, labels, truth = mixture(rows, dimensions, seed)
                found = information(z, labels, _SCORES)
                gaps.append([found[name] - truth[name] for name in _SCORES])
                exact.append(truth["information_neighbors/l2"])
            cells = "".join(f"{gap:>+24.2f}" for gap in np.mean(gaps, axis=0))
            yield f"{rows:>6}{dimensions:>6}{np.mean(exact):>9.2f}{cells}"
    from keras_dml.metrics.information_scores import FITTED, INFORMATION

    z, labels = clustered(options.timed_rows, options.timed_rows // 10, 128, seed=1)
    names = [name for name in INFORMATION if name not in FITTED]
    seconds, _ = seconds_of(lambda: information(z, labels, names))
    yield f"{options.timed_rows:,} rows of 128 dimensions, scores of pairs: {seconds:.1f} s"


def mixture(
    rows: int, dimensions: int, seed: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], dict[str, float]]:
    """Draw ten Gaussians of variance 1, whose centers have the mean distance 3.

    Returns:
        Rows `[n, d]`, labels `[n]`, and the exact value of each score.
    """
    rng = np.random.default_rng([seed, dimensions])
    centers = rng.normal(size=(_CLASSES, dimensions)) * 3 / math.sqrt(2 * dimensions)
    labels = np.arange(rows) % _CLASSES
    z = centers[labels] + np.random.default_rng([seed, rows]).normal(size=(rows, dimensions))
    within = dimensions / 2 * math.log(2 * math.pi * math.e)
    draws = np.arange(_DRAWS) % _CLASSES
    points = centers[draws] + rng.normal(size=(_DRAWS, dimensions))
    squares = ((points[:, None] - centers) ** 2).sum(axis=-1)
    # I = log K - E[log Σ_k exp((|z - c_y|² - |z - c_k|²)/2)]
    logs = np.log(np.exp((squares[np.arange(_DRAWS), draws, None] - squares) / 2).sum(axis=1))
    information = math.log(_CLASSES) - float(logs.mean())
    exact = dict.fromkeys(_SCORES, information)
    exact |= {"entropy_pairwise/l2": within + information, "entropy_within/l2": within}
    return z, labels, exact
