"""Closed-set accuracy of embeddings: test images of the classes that were trained on."""

import numpy as np
import numpy.typing as npt

from keras_dml.errors import ArgumentError


def class_mean_accuracy(
    train_embeddings: npt.ArrayLike,
    train_labels: npt.ArrayLike,
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
) -> float:
    """The share of rows whose class has the highest score `z·m_k`, without a classifier.

    m_k is the mean of class k's training embeddings: where cross-entropy has its classifier's
    weights, the pairwise losses have these. Computed in float64, neither z nor m_k normalised. Of
    equal scores the lowest class counts; a class without a training row can only be missed.

    Args:
        train_embeddings: numbers `[m, d]`.
        train_labels: class of each of them, integers `[m]`.
        embeddings: numbers `[n, d]`.
        labels: class of each of them, integers `[n]`, numbered as `train_labels`.

    Returns:
        float, a fraction.

    Raises:
        ValueError: embeddings that are not two matrices of equal width with a row or more, or
            labels of another shape.

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
    classes, numbers, sizes = np.unique(train_classes, return_inverse=True, return_counts=True)
    sums = np.zeros((len(classes), train_z.shape[1]))
    np.add.at(sums, numbers, train_z)
    scores = z @ (sums / sizes[:, None]).T
    return float(np.mean(classes[scores.argmax(axis=1)] == z_classes))


def _checked(
    side: str, given: npt.ArrayLike, given_labels: npt.ArrayLike
) -> tuple[npt.NDArray[np.float64], np.ndarray]:
    embeddings, labels = np.asarray(given, np.float64), np.asarray(given_labels)
    if embeddings.ndim != 2 or 0 in embeddings.shape:
        raise ArgumentError(
            f"{side}embeddings must be a matrix [n, d] with at least one row. "
            f"Received: {side}embeddings of shape {embeddings.shape}"
        )
    if labels.shape != embeddings.shape[:1]:
        raise ArgumentError(
            f"{side}labels must have shape [{len(embeddings)}], one for each row of "
            f"{side}embeddings. Received: {side}labels of shape {labels.shape}"
        )
    return embeddings, labels
