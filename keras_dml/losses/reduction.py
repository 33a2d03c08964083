"""Keras' reduction of the values of a batch."""

import keras
from keras import ops

from keras_dml._backend import private
from keras_dml._backend.replicas import place_among_replicas, sum_over_replicas
from keras_dml._common.types import Tensor, TensorLike
from keras_dml._pairwise.arrays import checked_weights, known_shape


class _Values(keras.losses.Loss):
    """A loss whose `y_true` are its values, because Keras would cast class ids to floats."""

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Return the values."""
        return y_true


def reduced(
    loss: keras.losses.Loss, values: Tensor, y_pred: Tensor, sample_weight: TensorLike | None
) -> Tensor:
    """Reduce values as Keras does, with its masks, and over all replicas.

    Args:
        loss: The loss with the reduction, the name, and the dtype.
        values: The value of each image, `[n]`, or of the batch.
        y_pred: The tensor that the model returned, which can have a Keras mask.
        sample_weight: A number, one weight for each image, or None.
    """

    def by_keras(values: Tensor, reduction: str | None, weights: TensorLike | None) -> Tensor:
        keras_loss = _Values(name=loss.name, reduction=reduction, dtype=loss.dtype)
        return keras_loss(values, y_pred, weights)

    if sample_weight is not None:
        sample_weight = checked_weights(sample_weight, (known_shape(y_pred) or (None,))[0])
    of_weights = loss.reduction == "mean_with_sample_weight"
    is_mean = loss.reduction in ("sum_over_batch_size", "mean")
    is_masked = private.get_keras_mask(y_pred) is not None
    # Keras divides by the weights of this replica, or by its images that the mask keeps.
    if of_weights or (is_mean and is_masked and place_among_replicas()[1] > 1):
        ones = ops.ones(ops.shape(y_pred)[:1], loss.dtype)
        everywhere = sum_over_replicas(by_keras(ones, "sum", sample_weight if of_weights else None))
        total = by_keras(values, "sum", sample_weight)
        return ops.divide_no_nan(ops.sum(total), everywhere)
    # On PyTorch, Keras divides by the number of rows in float32.
    if is_mean and keras.backend.backend() == "torch" and loss.dtype == "float64":
        value = by_keras(values, None, sample_weight)
        return ops.sum(value) / max(value.shape[0], 1)
    value = by_keras(values, loss.reduction, sample_weight)
    # Keras does not reduce a batch without rows.
    reduces = loss.reduction not in (None, "none")
    return ops.sum(value) if reduces and tuple(value.shape) == (0,) else value
