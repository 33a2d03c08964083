"""L2 normalization of the embeddings."""

import keras

from keras_dml._common.types import Tensor
from keras_dml._pairwise.arithmetic import row_lengths


@keras.saving.register_keras_serializable("keras_dml")
class UnitLength(keras.Layer):
    """L2 normalization that keeps equal rows equal.

    `keras.layers.UnitNormalization` multiplies by `rsqrt`, which on TensorFlow rounds differently
    at the end of a batch, so that two copies of an image have different embeddings. A row of zeros
    stays 0. The layer normalizes the last axis and has the arguments of `keras.layers.Layer`.

    Examples:
        >>> np.array(UnitLength()(np.array([[3, 4], [0, 0]], "float32")))
        array([[0.6, 0.8],
               [0. , 0. ]], dtype=float32)
    """

    def call(self, inputs: Tensor) -> Tensor:
        """Divide the rows `[n, d]` by their lengths."""
        return inputs / row_lengths(inputs, epsilon=1e-24)
