"""Mean average precision at R, and R-precision."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy.typing as npt

from keras_dml import relations
from keras_dml._common.types import Metric
from keras_dml.metrics.retrieval_task import Floats, RetrievalTask, known_mean, retrieval_task


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
    task = retrieval_task(embeddings, labels, metric, gallery, gallery_labels, relation)
    return mean_precision(task, task.scores(()))


def mean_precision(task: RetrievalTask, scores: Mapping[str, Floats]) -> PrecisionAtR:
    """Return the means of the scores of `RetrievalTask.scores`."""
    without = len(task.queries) - len(task.matched)
    return PrecisionAtR(known_mean(scores["map@r"]), known_mean(scores["r_precision"]), without)
