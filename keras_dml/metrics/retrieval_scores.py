"""Scores of the nearest items of each query: R@K, MAP@R, R-precision, nDCG, and others."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from keras_dml import relations
from keras_dml._common.blocks import slices
from keras_dml._common.rows import prepared_rows
from keras_dml._common.types import BoolArray, Engine, Float64Array, Int64Array, Metric
from keras_dml.metrics.neighbors import RetrievalTask, retrieval_task

if TYPE_CHECKING:
    from keras_dml.retrieval import Index
    from keras_dml.retrieval.reranking import Reranking

# ScaNN finds this many neighbors faster than products count the nearer items. Of the time of the
# products, it takes 0.90 for 32 of 5,924 x 512, 0.60 for 30 of 20,000 x 512, and 0.94 for 100.
_MOST_SEARCHED = 64
# Neighbors of the first approximate search for the first match, and the factor to the next search.
# Most queries have their first match among few neighbors.
_FEW_NEIGHBORS, _DEEPER = 16, 8
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
# Quantile of the normal distribution for an interval of 95 %.
_QUANTILE = 1.959964


def recall_at_k(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    ks: Iterable[int],
    metric: Metric = "cosine",
    gallery: npt.ArrayLike | None = None,
    gallery_labels: npt.ArrayLike | None = None,
    *,
    relation: relations.RelationLike = None,
) -> dict[int, float]:
    """Compute R@K: the fraction of rows with a row of their class among the K nearest other rows.

    The protocol of CUB, Cars-196, and Stanford Online Products (Song et al., 2016, "Deep metric
    learning via lifted structured feature embedding", section 5): every row is a query against all
    other rows, and a query whose class has no other item counts as a miss. With a gallery, the
    protocol of In-Shop (Liu et al., 2016, "DeepFashion", section 4.2): the search covers all rows
    of the gallery, and a query whose class is not in the gallery counts as a miss.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 3, 0], [-4, 0, 3], [0, 0, 5]], "float32") / 5
        >>> recall_at_k(z, labels, ks=[1, 2])
        {1: 1.0, 2: 1.0}

    Args:
        embeddings: Numbers `[n, d]`, n at least 2 (1 with a gallery).
        labels: Class of each row, `[n]`, as whole numbers (also floats), strings, or bytes. Or the
            labels of `relation`.
        ks: Values of K, each from 1 to n - 1, or to m.
        metric: "cosine" or "l2".
        gallery: Numbers `[m, d]`, m at least 1, to search instead of the other rows.
        gallery_labels: Class of each row of the gallery, `[m]`.
        relation: A relation of `keras_dml.relations`, whose positives count as rows of the class.

    Returns:
        `{K: fraction}` in the order of `ks`.

    Raises:
        ValueError: `ks` is empty, a K is out of range, labels have another shape, no query has an
            item of its class, only one of gallery and gallery_labels is set, the widths differ, or
            `retrieval.Index` refuses the embeddings or the metric.
    """
    task = retrieval_task(embeddings, labels, metric, gallery, gallery_labels, relation)
    ks = task.check_ks("ks", ks)
    scores = scores_of_queries(task, ks, ranked=False)
    return {k: float(scores[f"recall@{k}"].mean()) for k in ks}


class PrecisionScores(NamedTuple):
    """Means over the queries with a match, and the number of other queries.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 3, 0], [-4, 0, 3], [0, 0, 5]], "float32") / 5
        >>> keras_dml.metrics.precision_at_r(z, labels).map_at_r
        1.0

    Attributes:
        map_at_r: float, a fraction.
        r_precision: float, a fraction.
        queries_without_match: int, the number of queries without an item of their class. The means
            exclude them.
    """

    map_at_r: float
    r_precision: float
    queries_without_match: int


def precision_at_r(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    metric: Metric = "cosine",
    gallery: npt.ArrayLike | None = None,
    gallery_labels: npt.ArrayLike | None = None,
    *,
    relation: relations.RelationLike = None,
) -> PrecisionScores:
    """Compute MAP@R and R-precision: how many of the R nearest items have the query's class.

    R is the number of other items (or items of the gallery) with the query's class. With hit_i = 1
    if the i-th nearest item has the query's class:

        R-precision = (1/R) Σ_{i≤R} hit_i,    MAP@R = (1/R) Σ_{i≤R} hit_i · (1/i) Σ_{j≤i} hit_j

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 3, 0], [-4, 0, 3], [0, 0, 5]], "float32") / 5
        >>> precision_at_r(z, labels)
        PrecisionScores(map_at_r=1.0, r_precision=1.0, queries_without_match=0)

    Args:
        embeddings: Numbers `[n, d]`, n at least 2 (1 with a gallery).
        labels: Class of each row, `[n]`, or the labels of `relation`.
        metric: "cosine" or "l2".
        gallery: Numbers `[m, d]` to search instead of the other rows.
        gallery_labels: Class of each row of the gallery, `[m]`.
        relation: A relation of `keras_dml.relations`, whose positives count as rows of the class.

    Returns:
        `PrecisionScores`.

    Raises:
        ValueError: As in `recall_at_k`.

    Reference: Musgrave, Belongie and Lim 2020, "A metric learning reality check", section 2.2.
    """
    task = retrieval_task(embeddings, labels, metric, gallery, gallery_labels, relation)
    return mean_precision(task, scores_of_queries(task, ()))


def mean_precision(task: RetrievalTask, scores: Mapping[str, Float64Array]) -> PrecisionScores:
    """Return the means of the scores of `scores_of_queries`."""
    without = len(task.queries) - len(task.matched)
    return PrecisionScores(known_mean(scores["map@r"]), known_mean(scores["r_precision"]), without)


def ranking_scores(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    ks: Iterable[int] = (10,),
    metric: Metric = "cosine",
    gallery: npt.ArrayLike | None = None,
    gallery_labels: npt.ArrayLike | None = None,
    *,
    relation: relations.RelationLike = None,
) -> dict[str, float]:
    """Compute the scores of search engines over the k nearest items of each query.

    With the gain `g_i ≥ 0` of the i-th nearest item, the largest gains `g*_i` of all items in
    order, and hit_i = 1 if the i-th nearest item is relevant:

    - `ndcg@k = Σ_{i≤k} g_i / log₂(i + 1)  /  Σ_{i≤k} g*_i / log₂(i + 1)`
    - `mrr@k = 1 / i` for the first hit i ≤ k, and 0 without one
    - `precision@k = (1/k) Σ_{i≤k} hit_i`

    Each score is the mean over the queries with a relevant item. The gain is that of
    the relation: 1 for a relevant item, or a graded number (`Relation.gains`).

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 3, 0], [-4, 0, 3], [0, 0, 5]], "float32") / 5
        >>> ranking_scores(z, labels, ks=[2])
        {'ndcg@2': 1.0, 'mrr@2': 1.0, 'precision@2': 0.5}

    Args:
        embeddings: Numbers `[n, d]`, n at least 2 (1 with a gallery).
        labels: Class of each row, `[n]`, or the labels of `relation`.
        ks: Values of k, each from 1 to n - 1, or to m.
        metric: "cosine" or "l2".
        gallery: Numbers `[m, d]` to search instead of the other rows.
        gallery_labels: Labels of the gallery, m rows.
        relation: Which items are relevant, and how much. None: the items of the query's class.

    Returns:
        A dictionary of fractions, for each k in order.

    Raises:
        ValueError: As in `recall_at_k`, or the relation refuses the labels.

    Reference: Järvelin and Kekäläinen 2002, "Cumulated gain-based evaluation of IR techniques",
    with the discount log₂(i + 1) and linear gains, as in trec_eval.
    """
    task = retrieval_task(embeddings, labels, metric, gallery, gallery_labels, relation)
    return ranking_scores_of(task, ks)


def ranking_scores_of(task: RetrievalTask, ks: Iterable[int]) -> dict[str, float]:
    """Return `ranking_scores` of a task."""
    ks = task.check_ks("ks", ks)
    deepest, rows = max(ks), task.matched
    totals = np.zeros((len(ks), 3))
    discounts = np.log2(np.arange(2, deepest + 2))
    for block, found, hits in task.neighbors(rows, deepest):
        discounted = task.relevance.gains(rows[block], found) / discounts
        best = task.relevance.best_gains(rows[block], deepest) / discounts
        for of_k, k in zip(totals, ks):
            first = np.where(hits[:, :k].any(axis=1), 1 / (1 + hits[:, :k].argmax(axis=1)), 0)
            of_k += (
                np.sum(discounted[:, :k].sum(axis=1) / best[:, :k].sum(axis=1)),
                first.sum(),
                hits[:, :k].mean(axis=1).sum(),
            )
    means = totals / len(rows)
    names = ("ndcg", "mrr", "precision")
    return {
        f"{name}@{k}": float(score)
        for k, of_k in zip(ks, means)
        for name, score in zip(names, of_k)
    }


def scores_of_queries(
    task: RetrievalTask,
    ks: Sequence[int],
    *,
    ranked: bool = True,
    index: Index | None = None,
    rows: Int64Array | None = None,
) -> dict[str, Float64Array]:
    """Return the value of each query for each score, `[len(rows)]`. NaN for no value.

    Args:
        task: Queries, items, and their relevance.
        ks: Values of K. Can be empty.
        ranked: Whether to compute MAP@R and R-precision, which need as many neighbors as matches.
        index: An index of the items. The default is the exact index.
        rows: Row numbers of the queries. The default is all queries.

    Returns:
        "recall@K" for each K (1 for a match among the K nearest items, else 0), "map@r", and
        "r_precision".
    """
    rows = np.arange(len(task.queries)) if rows is None else rows
    counts = task.relevance.counts[rows]
    matched, most = np.flatnonzero(counts > 0), max(ks, default=0)
    searched = np.zeros(len(rows), np.int64)
    rank, average, precision = (np.full(len(rows), start) for start in (np.inf, np.nan, np.nan))
    for group in _by_depth(matched, counts) if ranked else ():
        depth = int(counts[group].max())
        for block, _, hits in task.neighbors(rows[group], depth, index):
            places = group[block]
            rank[places] = _first(hits)
            average[places], precision[places] = _precisions(hits, counts[places])
        searched[group] = depth
    missed = matched[np.isinf(rank[matched]) & (searched[matched] < most)]
    counted = index is None and not (task.by_scann and most <= _MOST_SEARCHED)
    counted = counted and task.reranked is None  # products have another order
    if counted and len(missed):
        rank[missed] = _ranks(task, rows[missed], ks)
    depth = most if counted else 0
    while depth < most:
        depth = most if index is None else min(max(_FEW_NEIGHBORS, _DEEPER * depth), most)
        missed = matched[np.isinf(rank[matched]) & (searched[matched] < depth)]
        for block, _, hits in task.neighbors(rows[missed], depth, index) if len(missed) else ():
            rank[missed[block]] = _first(hits)
    values = {f"recall@{k}": (rank < k).astype(np.float64) for k in ks}
    return values | {"map@r": average, "r_precision": precision}


def _ranks(task: RetrievalTask, rows: Int64Array, ks: Sequence[int]) -> Float64Array:
    """Return the rank of the first match of each query with one, from 0, as far as K needs it.

    For any K, this takes one pass over the pairs without sorting. The exact index decides only the
    cases that float32 products cannot, mostly ties.
    """
    from keras_dml.retrieval.products import ExactProducts

    products = ExactProducts(prepared_rows(task.items, "items", task.metric), task.metric)
    low, high = np.empty((2, len(rows)), np.int64)
    from keras_dml._common.progress import long_work_bar  # imports tqdm

    with long_work_bar("counting nearer items", len(rows)) as bar:
        for block in slices(len(rows), products.block):
            some = rows[block]
            queries = prepared_rows(task.queries[some], "queries", task.metric)
            own = some if task.own_rows else None
            bounds = products.rank_bounds(queries, task.relevance.mask(some), own)
            low[block], high[block] = bounds
            bar.update(len(some))
    ranks = high.astype(np.float64)
    unsure = {k: (low < k) & (high >= k) for k in ks}
    places = np.flatnonzero(np.any(list(unsure.values()), axis=0))
    if len(places):
        deepest = max(k for k in ks if unsure[k].any())
        for block, _, hits in task.neighbors(rows[places], deepest):
            found = places[block]
            ranks[found] = np.minimum(_first(hits), ranks[found])
    return ranks


def known_mean(values: Float64Array) -> float:
    """Return the mean of the values that are not NaN, or NaN without any."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _first(hits: BoolArray) -> Float64Array:
    """Return the rank of the first hit, from 0, or infinity."""
    return np.where(hits.any(axis=1), hits.argmax(axis=1), np.inf)


def _by_depth(rows: Int64Array, relevant: Int64Array) -> list[Int64Array]:
    """Group queries by their number of matches: up to 16, up to 32, up to 64, and so on.

    One large class then does not deepen every search.
    """
    rows = rows[np.argsort(relevant[rows], kind="stable")]
    depths = np.ceil(np.log2(np.maximum(relevant[rows], 16))).astype(np.int64)
    return np.split(rows, np.flatnonzero(np.diff(depths)) + 1) if len(rows) else []


def _precisions(hits: BoolArray, relevant: Int64Array) -> tuple[Float64Array, Float64Array]:
    """Return average precision at R and R-precision of each query, `[b]`.

    Args:
        hits: Whether each of the nearest items is a match, `[b, k]`.
        relevant: R of each query, from 1 to k, `[b]`.
    """
    ranks = np.arange(1, hits.shape[1] + 1)
    hits = hits & (ranks <= relevant[:, None])
    so_far = np.cumsum(hits, axis=1) / ranks
    return (hits * so_far).sum(axis=1) / relevant, hits.sum(axis=1) / relevant


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
    precision: PrecisionScores
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
    engine: Engine = "scann_tree",
    ranked: bool = True,
    rerank: str | Reranking | None = None,
) -> ApproximateScores:
    """Compute R@K, MAP@R, and R-precision, and by a tree of ScaNN their certificates.

    The certificates are the exact scores of at most 5,000 random queries. Their intervals are
    Wilson's. A score of a query is in [0, 1], so its variance is at most the p (1 - p) of a hit.
    If a query has more than 1,000 matches on average, MAP@R and R-precision are the exact scores of
    the sample. The sample then has at least 100 queries, and fewer than 5,000 in large classes.

    Args:
        embeddings, labels, ks, metric, gallery, gallery_labels, relation: As in `recall_at_k`.
        seed: Seed of the sample.
        engine: The result of `engine_of`. Without a tree, the scores are exact, and have no
            certificates.
        ranked: Whether to compute MAP@R and R-precision, without a tree.
        rerank: A re-ranking of the neighbors by cosine, as in `retrieval.named_reranking`. The
            search is then exact.

    Raises:
        ValueError: As in `recall_at_k`, or as in the function of the re-ranking.
        MissingExtraError: ScaNN does not load.

    Reference: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    task = retrieval_task(embeddings, labels, metric, gallery, gallery_labels, relation, engine)
    ks = task.check_ks("ks", ks)
    if rerank is not None:
        from keras_dml.retrieval.reranking import Reranked

        items = None if task.own_rows else task.items
        task = dataclasses.replace(task, reranked=Reranked(rerank, task.queries, items))
        return _means(task, ks, scores_of_queries(task, ks, ranked=ranked), {})
    if engine != "scann_tree":
        return _means(task, ks, scores_of_queries(task, ks, ranked=ranked), {})
    from keras_dml.retrieval import ScannIndex, TreeAH

    counts = task.relevance.counts[task.matched]
    matches = float(counts.mean())
    number = int(np.clip(_SAMPLED_NEIGHBORS / matches, _FEWEST_QUERIES, _MOST_QUERIES))
    queries = len(task.queries)
    sample = np.random.default_rng(seed).choice(queries, min(number, queries), replace=False)
    sample.sort()
    few = matches <= _MOST_MATCHES
    reorder = math.ceil(_REORDERED * max(matches, _FEWEST_MATCHES)) if few else None
    tree = TreeAH(target_recall=_TARGET_RECALL, reorder=reorder)
    found = scores_of_queries(task, ks, ranked=few, index=ScannIndex(task.items, metric, tree=tree))
    exact = scores_of_queries(task, ks, rows=sample)
    certificates = {name: _certificate(exact[name], found[name][sample]) for name in exact}
    if not few:  # the sample stands for all queries with a match
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
