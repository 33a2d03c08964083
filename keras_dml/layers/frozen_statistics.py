"""Batch norm that uses its stored statistics in training."""

import keras

from keras_dml._common.types import Tensor


@keras.saving.register_keras_serializable("keras_dml")
class FrozenStatisticsBatchNormalization(keras.layers.BatchNormalization):
    """Batch norm with its stored mean and variance in training too. Scale and offset are trained.

    Calling a whole backbone with `training=False` has no such effect inside another model, because
    Keras passes the outer model's `training` to every layer of a functional model.

    Examples:
        >>> layer = FrozenStatisticsBatchNormalization(epsilon=0.0)
        >>> np.round(layer(np.array([[3.0], [5.0]], "float32"), training=True), 3)
        array([[3.],
               [5.]], dtype=float32)
    """

    def call(
        self, inputs: Tensor, training: bool | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Normalize the inputs by the stored statistics."""
        return super().call(inputs, training=False, mask=mask)
