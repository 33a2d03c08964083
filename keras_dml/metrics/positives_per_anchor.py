"""Whether the batches of a training hold what a loss over pairs learns from."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import keras
from keras import ops

from keras_dml.checks import checked_class_ids, known_numbers
from keras_dml.class_ids import as_labels
from keras_dml.distribute import gather_candidates
from keras_dml.private import in_stateless_scope

if TYPE_CHECKING:
    from keras import KerasTensor


@keras.saving.register_keras_serializable("keras_dml")
class PositivesPerAnchor(keras.metrics.Mean):
    """Mean number of other images of an anchor's class in its batch, recorded during `fit`.

    `(1/n) Σ_i |{j ≠ i : y_j = y_i}|`, over the batches of an epoch, and over all replicas of each.

    A loss over pairs whose batches hold no two images of a class has nothing to pull together: it
    falls to almost nothing while the model learns nothing. Batches of m images a class give m − 1;
    32 images drawn at random of 400 classes give 0.08. The first epoch without a single positive
    ends with a warning; so does the first whose batches hold one class each, where nothing can be
    told apart: a dataset in the order of its classes, or, on JAX, class ids beyond int32, which
    Keras cuts to their lower half before a loss sees them. What a `CrossBatchMemory` holds beside
    the batch is not counted.

        model.compile("adam", loss, metrics=[PositivesPerAnchor()])

    Examples:
        >>> metric = PositivesPerAnchor()
        >>> metric.update_state(np.array([0, 0, 0, 1]), np.eye(4, dtype="float32"))
        >>> float(metric.result())
        1.5

    Args:
        name, dtype: as in Keras.
    """

    def __init__(
        self, name: str = "positives_per_anchor", dtype: str | keras.DTypePolicy | None = None
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self._negatives = self.add_variable(
            shape=(), initializer="zeros", dtype=self.dtype, name="negatives"
        )
        self._warned = False

    def update_state(
        self, y_true: KerasTensor, y_pred: KerasTensor, sample_weight: KerasTensor | None = None
    ) -> None:
        """Add a batch of class ids `[n]`; neither embeddings nor weights change the number."""
        class_ids = checked_class_ids(as_labels(y_true))
        candidates, _ = gather_candidates(class_ids)
        same = ops.equal(class_ids[:, None], candidates[None, :])
        self._negatives.assign_add(ops.sum(ops.cast(ops.logical_not(same), self.dtype)))
        return super().update_state(ops.sum(ops.cast(same, self.dtype), axis=-1) - 1)

    def reset_state(self) -> None:
        """Start again, as Keras does with each epoch."""
        super().reset_state()
        self._negatives.assign(0)

    def result(self) -> KerasTensor:
        """The mean so far; 0 before the first batch."""
        # In a graph there are no numbers, and while Keras builds a model on PyTorch ones stand for
        # the class ids: it asks again, outside of both, when an epoch ends.
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
    "each batch held images of one class alone, so a loss over pairs learned to tell nothing "
    f"apart, however low it is: {_BY_CLASS}. On JAX class ids beyond int32 fall together in fit: "
    "number the classes from 0, or enable jax_enable_x64"
)
