"""Scores of the nearest items of each query: R@K, MAP@R, R-precision, nDCG, and others."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keras_dml import relations
from keras_dml._common.types import Float64Array, Metric
from keras_dml.metrics.retrieval_task import RetrievalTask, known_mean, retrieval_task


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
    scores = task.scores(ks, ranked=False)
    return {k: float(scores[f"recall@{k}"].mean()) for k in ks}


class PrecisionAtR(NamedTuple):
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
) -> PrecisionAtR:
    """Compute MAP@R and R-precision: how many of the R nearest items have the query's class.

    R is the number of other items (or items of the gallery) with the query's class. With hit_i = 1
    if the i-th nearest item has the query's class:

        R-precision = (1/R) Σ_{i≤R} hit_i,    MAP@R = (1/R) Σ_{i≤R} hit_i · (1/i) Σ_{j≤i} hit_j

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 3, 0], [-4, 0, 3], [0, 0, 5]], "float32") / 5
        >>> precision_at_r(z, labels)
        PrecisionAtR(map_at_r=1.0, r_precision=1.0, queries_without_match=0)

    Args:
        embeddings: Numbers `[n, d]`, n at least 2 (1 with a gallery).
        labels: Class of each row, `[n]`, or the labels of `relation`.
        metric: "cosine" or "l2".
        gallery: Numbers `[m, d]` to search instead of the other rows.
        gallery_labels: Class of each row of the gallery, `[m]`.
        relation: A relation of `keras_dml.relations`, whose positives count as rows of the class.

    Returns:
        `PrecisionAtR`.

    Raises:
        ValueError: As in `recall_at_k`.

    Reference: Musgrave, Belongie and Lim 2020, "A metric learning reality check", section 2.2.
    """
    task = retrieval_task(embeddings, labels, metric, gallery, gallery_labels, relation)
    return mean_precision(task, task.scores(()))


def mean_precision(task: RetrievalTask, scores: Mapping[str, Float64Array]) -> PrecisionAtR:
    """Return the means of the scores of `RetrievalTask.scores`."""
    without = len(task.queries) - len(task.matched)
    return PrecisionAtR(known_mean(scores["map@r"]), known_mean(scores["r_precision"]), without)


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
