"""Mean average precision at R, and R-precision."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keras_dml import relations
from keras_dml._common.types import Metric
from keras_dml.metrics.neighbors import make_index, neighbor_blocks
from keras_dml.metrics.relevance import relevance_of


class PrecisionAtR(NamedTuple):
    """Means over the queries with a match (NaN without any), and the number of other queries.

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
    queries, items, relevance = relevance_of(
        embeddings, labels, gallery, gallery_labels, metric, relations.get(relation)
    )
    relevant = relevance.counts
    rows = np.flatnonzero(relevant > 0)
    if not len(rows):
        return PrecisionAtR(float("nan"), float("nan"), len(queries))
    index = make_index(items, metric)
    average = precision = 0.0
    for group in by_depth(rows, relevant):
        deepest = int(relevant[group].max())
        own_rows = group if gallery is None else None
        for block, found, _ in neighbor_blocks(index, queries[group], deepest, own_rows):
            of_block = group[block]
            hits = relevance.hits(of_block, found)
            of_averages, of_precisions = precisions(hits, relevant[of_block])
            average += np.sum(of_averages)
            precision += np.sum(of_precisions)
    without = len(queries) - len(rows)
    return PrecisionAtR(float(average / len(rows)), float(precision / len(rows)), without)


def by_depth(rows: np.ndarray, relevant: np.ndarray) -> list[npt.NDArray[np.int64]]:
    """Group queries by their number of matches: up to 16, up to 32, up to 64, and so on.

    One large class then does not deepen every search.

    Args:
        rows: Row numbers of the queries.
        relevant: Number of matches of each row.
    """
    rows = rows[np.argsort(relevant[rows], kind="stable")]
    depths = np.ceil(np.log2(np.maximum(relevant[rows], 16))).astype(np.int64)
    return np.split(rows, np.flatnonzero(np.diff(depths)) + 1) if len(rows) else []


def precisions(
    hits: npt.NDArray[np.bool_], relevant: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return average precision at R and R-precision of each query, `[b]`.

    Args:
        hits: Whether each of the nearest items is a match, `[b, k]`.
        relevant: R of each query, from 1 to k, `[b]`.
    """
    ranks = np.arange(1, hits.shape[1] + 1)
    hits = hits & (ranks <= relevant[:, None])
    so_far = np.cumsum(hits, axis=1) / ranks
    return (hits * so_far).sum(axis=1) / relevant, hits.sum(axis=1) / relevant
