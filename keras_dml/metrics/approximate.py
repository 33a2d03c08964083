"""Retrieval scores of large sets by ScaNN's tree, with certificates by exact search."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keras_dml import relations
from keras_dml._common.checks import check_choice
from keras_dml._common.errors import as_array
from keras_dml._common.types import NEIGHBORS, Float64Array, Metric, Neighbors
from keras_dml.metrics.distances import DistanceHistograms, distance_histograms
from keras_dml.metrics.retrieval_scores import PrecisionAtR, mean_precision
from keras_dml.metrics.retrieval_task import RetrievalTask, known_mean, retrieval_task

#: Number of images from which on "auto" selects ScaNN.
MANY = 200_000
# Recall of the exact 10 nearest that the tree must reach.
_TARGET_RECALL = 0.99
# Items that the tree compares exactly, for each match of a query. With ScaNN's two per neighbor,
# MAP@R was 0.5 points too low for 200,000 images of 2,000 classes, and with ten 0.02 points.
_REORDERED, _FEWEST_MATCHES = 10, 100
# Queries of a certificate. Their neighbors for MAP@R are at most this many together, so that large
# classes do not take hours, but for the fewest queries.
_MOST_QUERIES, _FEWEST_QUERIES, _SAMPLED_NEIGHBORS = 5_000, 100, 2**26
# Above this mean number of matches, MAP@R comes from the sample only. A search for this many
# neighbors visits nearly the whole tree.
_MOST_MATCHES = 1_000
# Queries for the estimate of the time, and for the histograms of distances.
_TIMED_QUERIES, _HISTOGRAM_QUERIES = 16, 2_000
# Quantile of the normal distribution for an interval of 95 %.
_QUANTILE = 1.959964


class Certificate(NamedTuple):
    """A score that exact search gives on a sample of the queries.

    Attributes:
        exact: The score on the sample, a fraction.
        low, high: The 95 % interval of the exact score of all queries.
        approximate: The score of the same queries by ScaNN. NaN if the score was not computed.
        queries: Number of queries in the sample that the score includes.
    """

    exact: float
    low: float
    high: float
    approximate: float
    queries: int

    def named(self, score: str) -> dict[str, float]:
        """Return the score and its interval by their names in logs: "recall@1/exact"."""
        values = {"exact": self.exact, "exact_low": self.low, "exact_high": self.high}
        return {f"{score}/{name}": value for name, value in values.items()}


class ApproximateScores(NamedTuple):
    """Scores by ScaNN's neighbors, or exact scores.

    Attributes:
        recall: `{K: fraction}`.
        precision: MAP@R and R-precision.
        certificates: The certificate of "recall@K" for each K, of "map@r", and of "r_precision".
            Empty for exact scores.
        of_queries: The value of each query for "recall@K", "map@r", and "r_precision", `[n]`. NaN
            for a query without the value: without a match, or outside the sample of a certificate.
    """

    recall: dict[int, float]
    precision: PrecisionAtR
    certificates: dict[str, Certificate]
    of_queries: dict[str, Float64Array]

    def named(self, prefix: str = "", suffix: str = "") -> dict[str, float]:
        """Return all numbers by their names in logs, such as "recall@1/cosine"."""
        scores = {f"recall@{k}": share for k, share in self.recall.items()}
        scores |= {"map@r": self.precision.map_at_r, "r_precision": self.precision.r_precision}
        values = {f"{prefix}{score}{suffix}": value for score, value in scores.items()}
        for score, certificate in self.certificates.items():
            values |= certificate.named(f"{prefix}{score}{suffix}")
        return values


def takes_scann(
    neighbors: Neighbors, embeddings: npt.ArrayLike, gallery: npt.ArrayLike | None = None
) -> bool:
    """Return whether the neighbors come from ScaNN's tree.

    If they should, but ScaNN does not load, log how long the exact search takes.

    Args:
        neighbors: One of `NEIGHBORS`. "auto" selects ScaNN from `MANY` images on, or with a gallery
            from as many pairs of a query and an item on.
        embeddings: Numbers `[n, d]`.
        gallery: Numbers `[m, d]` to search instead.

    Raises:
        ValueError: `neighbors` is unknown.
    """
    check_choice("neighbors", neighbors, NEIGHBORS)
    queries = as_array("embeddings", embeddings)
    items = queries if gallery is None else as_array("gallery", gallery)
    if neighbors == "exact" or queries.ndim != 2 or items.ndim != 2 or not len(queries):
        return False  # the exact search raises the error for a wrong shape
    if neighbors == "auto" and len(queries) * len(items) < MANY**2:
        return False
    from keras_dml.retrieval import scann_loads

    if not scann_loads():
        _log_estimate(queries, items)
        return False
    return True


def _log_estimate(queries: np.ndarray, items: np.ndarray) -> None:
    """Log the time of the exact search for all queries, from the time of a few queries."""
    from keras_dml.retrieval import ExactIndex

    index = ExactIndex(items, "l2")
    few = queries[:_TIMED_QUERIES]
    start = time.perf_counter()
    index.search(few, 1)
    seconds = (time.perf_counter() - start) * len(queries) / len(few)
    logging.getLogger("keras_dml").warning(
        "The exact search for the neighbors of %d images among %d takes about %s, for each metric.",
        len(queries), len(items),
        f"{seconds:.0f} seconds" if seconds < 90 else f"{seconds / 60:,.0f} minutes",
    )  # fmt: skip


def approximate_scores(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    ks: Iterable[int],
    metric: Metric = "cosine",
    gallery: npt.ArrayLike | None = None,
    gallery_labels: npt.ArrayLike | None = None,
    *,
    relation: relations.RelationLike = None,
    seed: int = 0,
    by_scann: bool = True,
) -> ApproximateScores:
    """Compute R@K, MAP@R, and R-precision by ScaNN's neighbors, and their certificates.

    The certificates are the exact scores of at most 5,000 random queries. Their intervals are
    Wilson's. A score of a query is in [0, 1], so its variance is at most the p (1 - p) of a hit.
    If a query has more than 1,000 matches on average, MAP@R and R-precision are the exact scores of
    the sample. The sample then has at least 100 queries, and fewer than 5,000 in large classes.

    Args:
        embeddings, labels, ks, metric, gallery, gallery_labels, relation: As in `recall_at_k`.
        seed: Seed of the sample.
        by_scann: The result of `takes_scann`. If False, the scores are exact, without certificates.

    Raises:
        ValueError: As in `recall_at_k`.
        MissingExtraError: ScaNN does not load.

    Reference: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    task = retrieval_task(embeddings, labels, metric, gallery, gallery_labels, relation)
    ks = task.check_ks("ks", ks)
    if not by_scann:
        return _means(task, ks, task.scores(ks), {})
    from keras_dml.retrieval import ScannIndex, TreeAH

    counts = task.relevance.counts[task.matched]
    matches = float(counts.mean())
    number = int(np.clip(_SAMPLED_NEIGHBORS / matches, _FEWEST_QUERIES, _MOST_QUERIES))
    queries = len(task.queries)
    sample = np.random.default_rng(seed).choice(queries, min(number, queries), replace=False)
    sample.sort()
    ranked = matches <= _MOST_MATCHES
    reorder = math.ceil(_REORDERED * max(matches, _FEWEST_MATCHES)) if ranked else None
    tree = TreeAH(target_recall=_TARGET_RECALL, reorder=reorder)
    found = task.scores(ks, ranked=ranked, index=ScannIndex(task.items, metric, tree=tree))
    exact = task.scores(ks, rows=sample)
    certificates = {name: _certificate(exact[name], found[name][sample]) for name in exact}
    if not ranked:  # the sample stands for all queries with a match
        for name in ("map@r", "r_precision"):
            found[name] = np.full(queries, np.nan)
            found[name][sample] = exact[name]
    return _means(task, ks, found, certificates)


def _means(
    task: RetrievalTask,
    ks: Iterable[int],
    scores: dict[str, Float64Array],
    certificates: dict[str, Certificate],
) -> ApproximateScores:
    recall = {k: float(scores[f"recall@{k}"].mean()) for k in ks}
    return ApproximateScores(recall, mean_precision(task, scores), certificates, scores)


def _certificate(exact: Float64Array, approximate: Float64Array) -> Certificate:
    number = int(np.count_nonzero(~np.isnan(exact)))
    if not number:
        return Certificate(math.nan, math.nan, math.nan, math.nan, 0)
    p, share = known_mean(exact), _QUANTILE**2 / number
    middle = (p + share / 2) / (1 + share)
    half = math.sqrt(share * p * (1 - p) + share**2 / 4) / (1 + share)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return Certificate(p, low, high, known_mean(approximate), number)


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
