"""Retrieval scores of large sets by ScaNN's tree, with certificates by exact search."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from keras_dml import relations
from keras_dml._common.checks import check_choice
from keras_dml._common.errors import as_array
from keras_dml._common.types import NEIGHBORS, Metric, Neighbors
from keras_dml.metrics.distances import DistanceHistograms, distance_histograms
from keras_dml.metrics.neighbors import check_ks, make_index, neighbor_blocks
from keras_dml.metrics.precision import PrecisionAtR, by_depth, precisions
from keras_dml.metrics.relevance import Relevance, Rows, relevance_of

if TYPE_CHECKING:
    from keras_dml.retrieval import Index

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
# Neighbors of the first search if only the first match counts.
_FEW_NEIGHBORS = 16
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
    """Scores by ScaNN's neighbors.

    Attributes:
        recall: `{K: fraction}`.
        precision: MAP@R and R-precision.
        certificates: The certificate of "recall@K" for each K, of "map@r", and of "r_precision".
    """

    recall: dict[int, float]
    precision: PrecisionAtR
    certificates: dict[str, Certificate]


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
) -> ApproximateScores:
    """Compute R@K, MAP@R, and R-precision by ScaNN's neighbors, and their certificates.

    The certificates are the exact scores of at most 5,000 random queries. Their intervals are
    Wilson's. A score of a query is in [0, 1], so its variance is at most the p (1 - p) of a hit.
    If a query has more than 1,000 matches on average, MAP@R and R-precision are the exact scores of
    the sample. The sample then has at least 100 queries, and fewer than 5,000 in large classes.

    Args:
        embeddings, labels, ks, metric, gallery, gallery_labels, relation: As in `recall_at_k`.
        seed: Seed of the sample.

    Raises:
        ValueError: As in `recall_at_k`.
        MissingExtraError: ScaNN does not load.

    Reference: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    from keras_dml.retrieval import ScannIndex, TreeAH

    queries, items, relevance = relevance_of(
        embeddings, labels, gallery, gallery_labels, metric, relations.get(relation)
    )
    own_rows = gallery is None
    ks = check_ks("ks", ks, items, own_rows)
    matched = relevance.counts[relevance.counts > 0]
    matches = float(matched.mean()) if len(matched) else 1.0
    number = int(np.clip(_SAMPLED_NEIGHBORS / matches, _FEWEST_QUERIES, _MOST_QUERIES))
    rows = np.arange(len(queries))
    sample = np.random.default_rng(seed).choice(rows, min(number, len(rows)), replace=False)
    sample.sort()

    def values(index: Index, rows: np.ndarray, ranked: bool) -> dict[str, npt.NDArray[np.float64]]:
        return _values(index, queries, relevance, rows, ks, own_rows, ranked)

    ranked = matches <= _MOST_MATCHES
    reorder = math.ceil(_REORDERED * max(matches, _FEWEST_MATCHES)) if ranked else None
    tree = TreeAH(target_recall=_TARGET_RECALL, reorder=reorder)
    found = values(ScannIndex(items, metric, tree=tree), rows, ranked)
    exact = values(make_index(items, metric), sample, True)
    certificates = {name: _certificate(exact[name], found[name][sample]) for name in exact}
    scores = {name: _mean(found[name]) for name in found}
    if not ranked:
        scores |= {name: certificates[name].exact for name in ("map@r", "r_precision")}
    precision = PrecisionAtR(scores["map@r"], scores["r_precision"], len(queries) - len(matched))
    return ApproximateScores({k: scores[f"recall@{k}"] for k in ks}, precision, certificates)


def _values(
    index: Index,
    queries: Rows,
    relevance: Relevance,
    rows: np.ndarray,
    ks: list[int],
    own_rows: bool,
    ranked: bool,
) -> dict[str, npt.NDArray[np.float64]]:
    """Return the value of each query for each score, `[len(rows)]`. NaN for no value.

    Args:
        index: The index of the items.
        queries, relevance: As from `relevance_of`.
        rows: Row numbers of the queries.
        ks: Values of K.
        own_rows: Whether query i is item i, and is excluded.
        ranked: Whether to compute MAP@R and R-precision, which need all matches.
    """
    counts = relevance.counts[rows]
    searched = np.zeros(len(rows), np.int64)
    rank, average, precision = (np.full(len(rows), start) for start in (np.inf, np.nan, np.nan))

    def search(group: np.ndarray, k: int, ranked: bool) -> None:
        own = rows[group] if own_rows else None
        for block, found, _ in neighbor_blocks(index, queries[rows[group]], k, own):
            places = group[block]
            hits = relevance.hits(rows[places], found)
            rank[places] = np.where(hits.any(axis=1), hits.argmax(axis=1), np.inf)
            if ranked:
                average[places], precision[places] = precisions(hits, counts[places])
        searched[group] = k

    matched = np.flatnonzero(counts > 0)
    if ranked:
        for group in by_depth(matched, counts):
            search(group, int(counts[group].max()), True)
    elif len(matched):
        search(matched, min(_FEW_NEIGHBORS, max(ks)), False)
    # Most queries have their first match among few neighbors, so few need a deeper search.
    missed = matched[np.isinf(rank[matched]) & (searched[matched] < max(ks))]
    if len(missed):
        search(missed, max(ks), False)
    values = {f"recall@{k}": (rank < k).astype(np.float64) for k in ks}
    return values | {"map@r": average, "r_precision": precision}


def _mean(values: npt.NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def _certificate(
    exact: npt.NDArray[np.float64], approximate: npt.NDArray[np.float64]
) -> Certificate:
    number = int(np.count_nonzero(~np.isnan(exact)))
    if not number:
        return Certificate(math.nan, math.nan, math.nan, math.nan, 0)
    p, share = _mean(exact), _QUANTILE**2 / number
    middle = (p + share / 2) / (1 + share)
    half = math.sqrt(share * p * (1 - p) + share**2 / 4) / (1 + share)
    return Certificate(
        p, max(0.0, middle - half), min(1.0, middle + half), _mean(approximate), number
    )


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
    rows, classes = as_array("embeddings", embeddings), np.asarray(labels)
    number = min(_HISTOGRAM_QUERIES, len(rows))
    sample = np.random.default_rng(seed).choice(len(rows), number, replace=False)
    if gallery is not None:
        return distance_histograms(
            rows[sample], classes[sample], gallery=gallery, gallery_labels=gallery_labels
        ).divergence()
    found = distance_histograms(rows[sample], classes[sample], gallery=rows, gallery_labels=classes)
    positive = found.positive.copy()
    positive[0] -= number  # the distance of each query to itself is 0
    return DistanceHistograms(positive, found.negative).divergence()
