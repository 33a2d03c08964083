"""Whether the batches of a training hold what a loss over pairs learns from."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import keras
from keras import ops

from keras_dml.checks import checked_class_ids, known_numbers
from keras_dml.class_ids import as_labels
from keras_dml.distribute import gather_candidates

if TYPE_CHECKING:
    from keras import KerasTensor


@keras.saving.register_keras_serializable("keras_dml")
class PositivesPerAnchor(keras.metrics.Mean):
    """Mean number of other images of an anchor's class in its batch, recorded during `fit`.

    `(1/n) Σ_i |{j ≠ i : y_j = y_i}|`, over the batches of an epoch, and over all replicas of each.

    A loss over pairs whose batches hold no two images of a class has nothing to pull together: it
    falls to almost nothing while the model learns nothing. Batches of m images a class give m − 1;
    32 images drawn at random of 400 classes give 0.08. The first epoch without a single positive
    ends with a warning. What a `CrossBatchMemory` holds beside the batch is not counted.

        model.compile("adam", loss, metrics=[PositivesPerAnchor()])

    Example:
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
        self._warned = False

    def update_state(
        self, y_true: KerasTensor, y_pred: KerasTensor, sample_weight: KerasTensor | None = None
    ) -> None:
        """Add a batch of class ids `[n]`; neither embeddings nor weights change the number."""
        class_ids = checked_class_ids(as_labels(y_true))
        candidates, _ = gather_candidates(class_ids)
        same = ops.equal(class_ids[:, None], candidates[None, :])
        return super().update_state(ops.sum(ops.cast(same, self.dtype), axis=-1) - 1)

    def result(self) -> KerasTensor:
        """The mean so far; 0 before the first batch."""
        # In a graph there are no numbers: Keras asks again, outside of it, when an epoch ends.
        total, batches = known_numbers(self.total), known_numbers(self.count)
        if total is not None and batches is not None and total == 0 < batches and not self._warned:
            self._warned = True
            warnings.warn(
                "no image had another one of its class in its batch, so a loss over pairs learned "
                "nothing, however low it is: give it batches by class "
                "(pipelines.BalancedSampler, --sampler=balanced), or larger ones",
                stacklevel=2,
            )
        return super().result()
