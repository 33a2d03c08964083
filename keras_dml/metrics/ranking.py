"""Scores of ranked lists: nDCG, mean reciprocal rank, precision, and recall of relevant items."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from keras_dml import relations
from keras_dml._common.types import Metric
from keras_dml.metrics.retrieval_task import retrieval_task


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

    Each score is the mean over the queries with a relevant item. NaN if no query has one. The gain
    is that of the relation: 1 for a relevant item, or a graded number (`Relation.gains`).

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
    means = totals / len(rows) if len(rows) else np.full_like(totals, np.nan)
    names = ("ndcg", "mrr", "precision")
    return {
        f"{name}@{k}": float(score)
        for k, of_k in zip(ks, means)
        for name, score in zip(names, of_k)
    }
