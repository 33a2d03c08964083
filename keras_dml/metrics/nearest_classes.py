"""The classes whose mean embeddings are nearest to each other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from keras_dml._common.checks import argument_error, check_whole
from keras_dml._common.errors import ArgumentError
from keras_dml._common.labels import plain_labels
from keras_dml._common.rows import prepared_rows
from keras_dml._common.types import Int64Array, Metric
from keras_dml.metrics.neighbors import MANY, neighbor_blocks


def nearest_classes(
    embeddings: npt.ArrayLike, labels: npt.ArrayLike, k: int, metric: Metric = "cosine"
) -> Int64Array:
    """Find the k nearest other classes of each class, by the mean embeddings of the classes.

    With n_c images of class c and their embeddings z_i (of unit length for "cosine"), the mean is

        m_c = 1/n_c Σ_{i∈c} z_i

    and the nearest classes are those of the nearest other means: exact below 200,000 classes, and
    by ScaNN's tree from there on, if ScaNN is installed.

    Examples:
        >>> z = [[1.0, 0.0], [1.0, 0.2], [0.8, 0.6], [0.0, 1.0]]
        >>> nearest_classes(z, ["a", "a", "b", "c"], k=1)
        array([[1],
               [0],
               [1]])

    Args:
        embeddings: Numbers `[n, d]`.
        labels: Class of each row, integers or strings `[n]`.
        k: From 1 to the number of classes − 1.
        metric: "cosine" or "l2".

    Returns:
        int64 `[classes, k]`, nearest first: the numbers of the classes in sorted order. Equal
        distances are ordered by these numbers.

    Raises:
        ValueError: `k` is out of range, or labels or embeddings have a wrong shape or dtype or are
            not finite.
    """
    rows = prepared_rows(embeddings, "embeddings", metric)
    given = plain_labels("labels", labels)
    if given.shape != (len(rows),):
        raise ArgumentError(
            f"labels must be {len(rows)} labels, one for each embedding, but got shape "
            f"{given.shape}."
        )
    names, numbers = np.unique(given, return_inverse=True)
    if len(names) < 2:
        raise argument_error("labels", "labels of at least 2 classes", len(names))
    k = check_whole("k", k, least=1, most=len(names) - 1)
    order = np.argsort(numbers, kind="stable")
    counts = np.bincount(numbers)
    sums = np.add.reduceat(rows[order], np.cumsum(counts) - counts, axis=0, dtype=np.float64)
    return _nearest(sums / counts[:, None], k, metric)


def _nearest(means: np.ndarray, k: int, metric: Metric) -> Int64Array:
    # Imported here, because `import keras_dml` does not import indexes.
    from keras_dml.retrieval import TreeAH, build_index

    index = build_index(means, metric, tree=TreeAH() if len(means) >= MANY else None)
    found = neighbor_blocks(index, means, k, own_rows=np.arange(len(means)))
    return np.concatenate([rows for _, rows, _ in found])
