"""Recall at K among the rows of one set, or in a gallery."""

from collections.abc import Iterable

import numpy.typing as npt

from keras_dml import relations
from keras_dml._common.types import Metric
from keras_dml.metrics.retrieval_task import retrieval_task


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
    task = retrieval_task(embeddings, labels, metric, gallery, gallery_labels, relation)
    ks = task.check_ks("ks", ks)
    scores = task.scores(ks, ranked=False)
    return {k: float(scores[f"recall@{k}"].mean()) for k in ks}
