"""An embedding layer, and poolings with a fixed exponent."""

import math
from typing import Any

import keras
from keras import ops

from keras_dml._backend.configured import Configured
from keras_dml._common.types import Tensor

__all__ = ["GeneralizedMeanPooling1D", "GeneralizedMeanPooling2D", "MetricEmbedding"]

registered = keras.saving.register_keras_serializable("Similarity")


@registered
class MetricEmbedding(keras.layers.Dense):
    """A dense layer whose output is l2-normalized over axis 1. A row of zeros stays zero.

    Examples:
        >>> embeddings = MetricEmbedding(2)(np.eye(4, dtype="float32"))
        >>> np.round(np.linalg.norm(embeddings, axis=1), 3)
        array([1., 1., 1., 1.], dtype=float32)

    Args:
        units: Length of an embedding. Other arguments are those of `keras.layers.Dense`.
    """

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Compute the embeddings."""
        return ops.normalize(super().call(inputs), axis=1)


class _GeneralizedMeanPooling(Configured, keras.layers.Layer):
    """A generalized mean over the axes of steps or pixels, per channel.

    Each channel is first shifted so that its minimum is 1, and shifted back after pooling.
    """

    rank: int

    def __init__(
        self, p: float = 3.0, data_format: str | None = None, keepdims: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.p, self.keepdims = p, keepdims
        self.data_format = data_format or keras.config.image_data_format()
        self.input_spec = keras.layers.InputSpec(ndim=self.rank)

    def call(self, inputs: Tensor) -> Tensor:
        """Compute the pooled channels."""
        first = 1 if self.data_format == "channels_last" else 2
        axes = tuple(range(first, first + self.rank - 2))
        shift = ops.min(inputs, axis=axes, keepdims=True) - 1.0
        values = inputs - shift
        if abs(self.p) < 1e-5:
            pooled = ops.exp(ops.mean(ops.log(values), axis=axes, keepdims=True))
        elif math.isinf(self.p):
            reduce = ops.max if self.p > 0 else ops.min
            pooled = reduce(values, axis=axes, keepdims=True)
        else:
            pooled = ops.mean(values**self.p, axis=axes, keepdims=True) ** (1.0 / self.p)
        pooled = pooled + shift
        return pooled if self.keepdims else ops.squeeze(pooled, axis=axes)


@registered
class GeneralizedMeanPooling1D(_GeneralizedMeanPooling):
    """A generalized mean over the steps of `[n, steps, channels]`.

    Examples:
        >>> values = np.array([[[0.0], [1.0]]], "float32")
        >>> float(GeneralizedMeanPooling1D(p=float("inf"))(values)[0, 0])
        1.0

    Args:
        p: Exponent. 0: the geometric mean. Infinity and minus infinity: maximum and minimum.
        data_format: `"channels_last"`, `"channels_first"`, or None for the setting of Keras.
        keepdims: Whether the pooled axes stay, with length 1.
    """

    rank = 3


@registered
class GeneralizedMeanPooling2D(_GeneralizedMeanPooling):
    """A generalized mean over the pixels of `[n, height, width, channels]`.

    Unlike `keras_dml.models.GeneralizedMeanPooling`, p is fixed and negative numbers count.

    Examples:
        >>> images = np.arange(8, dtype="float32").reshape(1, 2, 2, 2) - 3
        >>> np.round(GeneralizedMeanPooling2D()(images), 3)
        array([[0.987, 1.987]], dtype=float32)

    Args:
        p: Exponent. 0: the geometric mean. Infinity and minus infinity: maximum and minimum.
        data_format: `"channels_last"`, `"channels_first"`, or None for the setting of Keras.
        keepdims: Whether the pooled axes stay, with length 1.
    """

    rank = 4
