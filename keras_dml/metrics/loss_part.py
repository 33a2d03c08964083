"""The tightness part or the contrastive part of a loss, as a Keras metric."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from keras_dml._backend.configured import Configured
from keras_dml._common.errors import ArgumentTypeError, argument_error

if TYPE_CHECKING:
    from keras import KerasTensor

    from keras_dml.losses.base import EmbeddingLoss


@keras.saving.register_keras_serializable("keras_dml")
class LossPart(Configured, keras.metrics.Mean):
    """A metric of one part of a loss: its mean over the images, recorded during `fit`.

    `model.compile(loss=loss, metrics=[LossPart(loss, "tightness"), LossPart(loss, "contrastive")])`

    Examples:
        >>> loss = keras_dml.losses.ContrastiveLoss()
        >>> metric = LossPart(loss, "tightness")
        >>> z = np.array([[3, 4], [4, 3], [0, 5]], "float32") / 5
        >>> metric.update_state(np.array([0, 0, 1]), z)
        >>> round(float(metric.result()), 3)
        0.053

    Args:
        loss: A `keras_dml.losses.EmbeddingLoss`.
        part: `"tightness"`, `"contrastive"`, or a name in the loss's `measured`.
        name: Name of the metric. The default is the part.

    Raises:
        TypeError: The loss has no parts.
        ValueError: The part is unknown.

    Reference: Boudiaf et al. 2020, Table 2.
    """

    def __init__(
        self,
        loss: EmbeddingLoss,
        part: str,
        name: str | None = None,
        dtype: str | keras.DTypePolicy | None = None,
    ) -> None:
        if not isinstance(loss, keras.losses.Loss) or not hasattr(loss, "measured"):
            wanted = "a keras_dml.losses.EmbeddingLoss"
            raise argument_error("loss", wanted, loss, ArgumentTypeError)
        known = ("tightness", "contrastive", *loss.measured)
        if not isinstance(part, str) or part not in known:
            raise argument_error("part", f"one of {', '.join(known)}", part)
        super().__init__(name=name or part, dtype=dtype)
        self.loss = loss
        self.part = part

    def update_state(
        self, y_true: KerasTensor, y_pred: KerasTensor, sample_weight: KerasTensor | None = None
    ) -> None:
        """Add a batch of class ids `[n]` and embeddings or logits `[n, d]`."""
        if self.part in self.loss.measured:
            values = getattr(self.loss, self.part)(y_true, y_pred)
            return super().update_state(values)
        tightness, contrastive = self.loss.parts(y_true, y_pred)
        values = tightness if self.part == "tightness" else contrastive
        return super().update_state(values, sample_weight=sample_weight)
