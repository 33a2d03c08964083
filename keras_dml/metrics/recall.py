"""Recall at K among the rows of one set, or in a gallery."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from keras_dml import relations
from keras_dml._common.rows import normalized
from keras_dml._common.types import Metric
from keras_dml.metrics.neighbors import Rows, check_ks, make_index, neighbor_blocks
from keras_dml.metrics.ranks import rank_bounds
from keras_dml.metrics.relevance import Relevance, SameClassRelevance, relevance_of


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
        ValueError: `ks` is empty, a K is out of range, labels have another shape, only one of
            gallery and gallery_labels is set, the widths differ, or `retrieval.Index` refuses the
            embeddings or the metric.
    """
    queries, items, relevance = relevance_of(
        embeddings, labels, gallery, gallery_labels, metric, relations.get(relation)
    )
    ks = check_ks("ks", ks, items, gallery is None)
    low, high = _rank_bounds(queries, items, relevance, metric)
    hits = {k: int(np.count_nonzero(high < k)) for k in ks}
    unsure = {k: (low < k) & (high >= k) for k in ks}
    # The index decides cases that float32 products cannot, mostly ties.
    rows = np.flatnonzero(np.any(list(unsure.values()), axis=0))
    if len(rows):
        deepest = max(k for k in ks if unsure[k].any())
        own_rows = rows if gallery is None else None
        index = make_index(items, metric)
        for block, found, _ in neighbor_blocks(index, queries[rows], deepest, own_rows):
            relevant = relevance.hits(rows[block], found)
            for k in hits:
                among = relevant[:, :k].any(axis=1) & unsure[k][rows[block]]
                hits[k] += int(np.count_nonzero(among))
    return {k: count / len(queries) for k, count in hits.items()}


def _rank_bounds(
    queries: Rows, items: Rows, relevance: Relevance, metric: Metric
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the bounds of each query's rank of its first relevant item, from 0."""
    if not isinstance(relevance, SameClassRelevance):  # any rank, so that the index decides
        return np.zeros(len(queries), np.int64), np.full(len(queries), len(items))
    own_rows = items is queries
    if metric == "cosine":
        queries = normalized(queries)
        items = queries if own_rows else normalized(items)
    return rank_bounds(queries, relevance.codes, items, relevance.item_codes, metric, own_rows)
