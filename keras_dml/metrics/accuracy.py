"""Closed-set accuracy of embeddings: test images of the classes that were trained on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from keras_dml._common.errors import ArgumentError, as_array, shape_error
from keras_dml._common.labels import joined_labels
from keras_dml._common.rows import finite_rows
from keras_dml._common.types import Float64Array
from keras_dml.metrics.relevance import checked_labels


def class_mean_accuracy(
    train_embeddings: npt.ArrayLike,
    train_labels: npt.ArrayLike,
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
) -> float:
    """Compute the fraction of rows whose class has the highest score `z·m_k`, without a classifier.

    m_k is the mean of class k's training embeddings. It takes the place of the classifier weights
    of cross-entropy for the pairwise losses. The scores are computed in float64, and neither z nor
    m_k is normalized. Among equal scores, the lowest class counts. A row whose class has no
    training rows counts as an error.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 3, 0], [-4, 0, 3], [0, 0, 5]], "float32") / 5
        >>> class_mean_accuracy(z, labels, z, labels)
        1.0

    Args:
        train_embeddings: Numbers `[m, d]`.
        train_labels: Class of each training embedding, integers `[m]`.
        embeddings: Numbers `[n, d]`.
        labels: Class of each embedding, integers `[n]`, with the same numbers as `train_labels`.

    Returns:
        float, a fraction.

    Raises:
        ValueError: The embeddings are not two finite matrices of equal width with at least one row,
            or labels have another shape.

    Reference: Boudiaf et al. 2020, appendix B; m_k up to its scale is the θ_k with which
    cross-entropy becomes SPCE (Eq. 15).
    """
    train_z, train_classes = _checked("train_", train_embeddings, train_labels)
    z, z_classes = _checked("", embeddings, labels)
    if train_z.shape[1] != z.shape[1]:
        raise ArgumentError(
            "train_embeddings and embeddings must have the same width, but got shapes "
            f"{train_z.shape} and {z.shape}."
        )
    joined = joined_labels([("train_labels", train_classes), ("labels", z_classes)])
    train_classes, z_classes = np.split(joined, [len(train_classes)])
    classes, numbers, sizes = np.unique(train_classes, return_inverse=True, return_counts=True)
    sums = np.zeros((len(classes), train_z.shape[1]))
    np.add.at(sums, numbers, train_z)
    scores = z @ (sums / sizes[:, None]).T
    return float(np.mean(classes[scores.argmax(axis=1)] == z_classes))


def _checked(
    side: str, given: npt.ArrayLike, given_labels: npt.ArrayLike
) -> tuple[Float64Array, np.ndarray]:
    name = f"{side}embeddings"
    rows = finite_rows(given, name)
    if not len(rows):
        raise shape_error(name, "a matrix [n, d] with at least one row", rows)
    # Converted again, because `finite_rows` rounds to float32.
    embeddings = as_array(name, given).astype(np.float64)
    return embeddings, checked_labels(f"{side}labels", given_labels, len(rows))
