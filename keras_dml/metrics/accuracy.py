"""Closed-set accuracy of embeddings: test images of the classes that were trained on."""

import numpy as np
import numpy.typing as npt

from keras_dml._common.errors import ArgumentError
from keras_dml._common.labels import joined_labels, plain_labels
from keras_dml._pairwise.arrays import numbers_of


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
            or labels of another shape.

    Reference: Boudiaf et al. 2020, appendix B; m_k up to its scale is the θ_k with which
    cross-entropy becomes SPCE (Eq. 15).
    """
    train_z, train_classes = _checked("train_", train_embeddings, train_labels)
    z, z_classes = _checked("", embeddings, labels)
    if train_z.shape[1] != z.shape[1]:
        raise ArgumentError(
            "train_embeddings and embeddings must have the same width. "
            f"Received: shapes {train_z.shape} and {z.shape}"
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
) -> tuple[npt.NDArray[np.float64], np.ndarray]:
    rows = numbers_of(f"{side}embeddings", given, "a matrix [n, d]")
    embeddings, labels = np.asarray(rows, np.float64), plain_labels(f"{side}labels", given_labels)
    if embeddings.ndim != 2 or 0 in embeddings.shape:
        raise ArgumentError(
            f"{side}embeddings must be a matrix [n, d] with at least one row. "
            f"Received: {side}embeddings of shape {embeddings.shape}"
        )
    bad = np.flatnonzero(~np.isfinite(embeddings).all(axis=1))
    if len(bad):
        raise ArgumentError(
            f"{side}embeddings must be finite. Received: NaN or infinity in {len(bad)} of "
            f"{len(embeddings)} rows, the first of them row {bad[0]}"
        )
    if labels.shape != embeddings.shape[:1]:
        raise ArgumentError(
            f"{side}labels must have shape [{len(embeddings)}], one for each row of "
            f"{side}embeddings. Received: {side}labels of shape {labels.shape}"
        )
    return embeddings, labels
