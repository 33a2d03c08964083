"""Recall within each batch, as a metric of `model.compile`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from keras_dml import relations
from keras_dml._backend.configured import Configured
from keras_dml._common.checks import check_whole
from keras_dml._pairwise.pairs import Pairs, normalize

if TYPE_CHECKING:
    from keras import KerasTensor


@keras.saving.register_keras_serializable("keras_dml")
class InBatchRecall(Configured, keras.metrics.Mean):
    """A metric for `compile`: recall at k, in which each batch is its own gallery.

    With the ranks of the other images of the batch by cosine similarity, the mean over all images
    that have another one of their class in their batch:

        1 if one of the k nearest other images has the class of the image, else 0

    Images of equal similarity rank in the order of the batch. Pairs that a relation leaves out do
    not count. Several replicas share one batch.

    This is not the recall of a test set. A batch of 32 images has 31 candidates and a test set has
    thousands, so the value is far higher, and it depends on the size and on the classes of the
    batches: do not report it, and do not compare runs with other batches by it. It shows during
    `fit` whether the embedding begins to separate the classes. For the recall over a whole set, use
    `keras_dml.callbacks.RetrievalEvaluation` or `recall_at_k`.

        model.compile("adam", loss, metrics=[InBatchRecall(k=1)])

    Examples:
        >>> metric = InBatchRecall(k=1)
        >>> z = np.array([[3, 4, 0], [4, 3, 0], [-4, 0, 3], [0, 0, 5]], "float32") / 5
        >>> metric.update_state(np.array([0, 0, 1, 2]), z)
        >>> float(metric.result())
        1.0

    Args:
        k: Number of nearest images, at least 1.
        name: Name in the history. None is `in_batch_recall_at_K`.
        dtype: As in Keras.
        relation: The relation of the loss, from `keras_dml.relations`. None: the same class.

    Raises:
        ValueError: `k` is not a positive integer.
    """

    def __init__(
        self,
        k: int = 1,
        name: str | None = None,
        dtype: str | keras.DTypePolicy | None = None,
        *,
        relation: relations.RelationLike = None,
    ) -> None:
        self.k = check_whole("k", k, least=1)
        super().__init__(name=name or f"in_batch_recall_at_{self.k}", dtype=dtype)
        self.relation = relations.get(relation)

    def update_state(
        self, y_true: KerasTensor, y_pred: KerasTensor, sample_weight: KerasTensor | None = None
    ) -> None:
        """Add a batch of labels (n rows) and embeddings `[n, d]`, with weights `[n]` or None."""
        labels = self.relation.checked_labels(y_true)
        embeddings = normalize(ops.cast(y_pred, self.dtype))
        pairs = Pairs.of_batch(labels, embeddings, self.relation.compare)
        similarities = pairs.similarities()
        lowest = ops.full_like(similarities, -2.0)  # below any cosine
        best = ops.max(ops.where(pairs.positive, similarities, lowest), axis=1, keepdims=True)
        # The rank of the best positive is the number of negatives in front of it.
        columns = ops.cumsum(ops.ones_like(similarities), axis=1)
        is_best = ops.logical_and(pairs.positive, similarities >= best)
        last = ops.full_like(columns, float("inf"))
        first = ops.min(ops.where(is_best, columns, last), axis=1, keepdims=True)
        ties = ops.logical_and(ops.equal(similarities, best), columns < first)
        in_front = ops.logical_and(pairs.negative, ops.logical_or(similarities > best, ties))
        is_near = ops.sum(ops.cast(in_front, "int32"), axis=1) < self.k
        hits = ops.logical_and(ops.any(is_best, axis=1), is_near)  # not for embeddings of NaN
        weights = ops.cast(pairs.have_positives(), self.dtype)
        if sample_weight is not None:
            weights = weights * ops.reshape(ops.cast(sample_weight, self.dtype), (-1,))
        return super().update_state(ops.cast(hits, self.dtype), weights)
