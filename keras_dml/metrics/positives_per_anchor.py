"""A check that training batches contain the pairs that a loss over pairs learns from."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import keras
from keras import ops

from keras_dml import relations
from keras_dml._backend.configured import Configured
from keras_dml._backend.private import in_stateless_scope
from keras_dml._backend.replicas import gather_candidates
from keras_dml._pairwise.arrays import known_numbers

if TYPE_CHECKING:
    from keras import KerasTensor


@keras.saving.register_keras_serializable("keras_dml")
class PositivesPerAnchor(Configured, keras.metrics.Mean):
    """A metric: the mean number of positives of an anchor in its batch, during `fit`.

    `(1/n) Σ_i |{j ≠ i : y_j = y_i}|`, over the batches of an epoch, and over all replicas of each.
    With a relation, the positives are those of the relation.

    If batches contain no two images of a class, a loss over pairs has no positive pairs. Its value
    falls to almost nothing, but the model learns nothing. Batches with m images per class give m −
    1. 32 random images of 400 classes give 0.08. The metric warns after the first epoch without any
    positive pair. It also warns after the first epoch in which each batch contains only one class,
    so that no pair is negative. Causes are a dataset sorted by class or, on JAX, class ids
    beyond int32, which Keras truncates to their lower half before a loss sees them. The rows of a
    `CrossBatchMemory` are not counted.

        model.compile("adam", loss, metrics=[PositivesPerAnchor()])

    Examples:
        >>> metric = PositivesPerAnchor()
        >>> metric.update_state(np.array([0, 0, 0, 1]), np.eye(4, dtype="float32"))
        >>> float(metric.result())
        1.5

    Args:
        name, dtype: As in Keras.
        relation: The relation of the loss, from `keras_dml.relations`. None: the same class.
    """

    def __init__(
        self,
        name: str = "positives_per_anchor",
        dtype: str | keras.DTypePolicy | None = None,
        *,
        relation: relations.RelationLike = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self._negatives = self.add_variable(
            shape=(), initializer="zeros", dtype=self.dtype, name="negatives"
        )
        self._warned = False
        self.relation = relations.get(relation)

    def update_state(
        self, y_true: KerasTensor, y_pred: KerasTensor, sample_weight: KerasTensor | None = None
    ) -> None:
        """Add a batch of labels with n rows. The embeddings and weights have no effect."""
        labels = self.relation.checked_labels(y_true)
        candidates, first_row = gather_candidates(labels)
        positive, negative = self.relation(labels, candidates)
        rows = ops.arange(ops.shape(labels)[0], dtype="int32") + first_row
        columns = ops.arange(ops.shape(candidates)[0], dtype="int32")
        others = ops.not_equal(rows[:, None], columns[None, :])
        self._negatives.assign_add(ops.sum(ops.cast(negative, self.dtype)))
        positives = ops.cast(ops.logical_and(positive, others), self.dtype)
        return super().update_state(ops.sum(positives, axis=-1))

    def reset_state(self) -> None:
        """Reset the metric, as Keras does at the start of each epoch."""
        super().reset_state()
        self._negatives.assign(0)

    def result(self) -> KerasTensor:
        """Return the mean so far. 0 before the first batch."""
        # A graph has no known numbers, and while Keras builds a model on PyTorch, the class ids are
        # ones. Keras calls `result` again outside of both when an epoch ends.
        count = None if in_stateless_scope() else known_numbers(self.count)
        if count is not None and count > 0 and not self._warned:
            missing = (
                _NO_POSITIVES
                if known_numbers(self.total) == 0
                else _ONE_CLASS
                if known_numbers(self._negatives) == 0
                else None
            )
            if missing:
                self._warned = True
                warnings.warn(missing, stacklevel=2)
        return super().result()


_BY_CLASS = (
    "give it batches by class (pipelines.BalancedSampler, --sampler=balanced), or larger ones"
)
_NO_POSITIVES = (
    "no image had another one of its class in its batch, so a loss over pairs learned nothing, "
    f"however low it is: {_BY_CLASS}"
)
_ONE_CLASS = (
    "each batch had images of one class alone, so a loss over pairs learned no differences, "
    f"however low it is: {_BY_CLASS}. On JAX, fit merges class ids beyond int32: "
    "number the classes from 0, or enable jax_enable_x64"
)
