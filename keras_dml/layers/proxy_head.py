"""A head of class proxies, for losses on cosines."""

from collections.abc import Callable
from typing import Any, Literal

import keras
from keras import ops

from keras_dml._backend.configured import Configured
from keras_dml._common.checks import check_choice, check_positive, check_whole
from keras_dml._common.errors import argument_error
from keras_dml._common.types import Tensor
from keras_dml._pairwise.arithmetic import matmul
from keras_dml._pairwise.pairs import normalize
from keras_dml.layers.checks import check_full_precision, embedding_size


@keras.saving.register_keras_serializable("keras_dml")
class ProxyHead(Configured, keras.Layer):
    """A head from embeddings `[n, d]` to the cosines `[n, K]` to learned proxies of K classes.

    The layer has one weight, `proxies` `[K·C, d]`. Class k has the rows `k C … k C + C − 1`.
    Embeddings and proxies are l2-normalized in the layer. A zero row has the cosine 0 to all
    proxies. With C > 1 centers per class, `pooling` selects the cosine of a class:

    - `"max"`: the cosine of the nearest center (sub-center ArcFace)
    - `"soft"`: the mean of its centers' cosines `c_j` with the weights `softmax_j(c_j / γ)`
      (SoftTriple)

    The cosines are float32 under any precision policy. Memory is `[n, K C]`, never `[n, K, d]`. Set
    the learning rate of the proxies in the optimizer,
    `keras_dml.optimizers.multipliers(head, 100)`. Scaling their gradients has no effect with Adam.

    Examples:
        >>> head = ProxyHead(num_classes=3)
        >>> head(np.ones((2, 8), "float32")).shape
        TensorShape([2, 3])

    Args:
        num_classes: K, at least 2.
        centers: C, the number of proxies per class, at least 1.
        pooling: How to reduce the cosines of a class's centers to one: `"max"` or `"soft"`.
        temperature: γ of the soft pooling, above 0.
        proxies_initializer: A Keras initializer. None is N(0, 1/d), which gives a length of about
            1. The length of a proxy does not change its cosines, but it changes how far a step
            turns the proxy.
        proxies_regularizer: A Keras regularizer, such as `CenterRegularizer`, or None.
        dtype: float32 or float64.
        name, trainable: As in every Keras layer.

    Raises:
        ValueError: A number is out of range, `pooling` is unknown, `dtype` is not supported, or the
            inputs are not `[n, d]`.

    References: Movshovitz-Attias et al. 2017; Deng et al. 2020, Eq. 3; Qian et al. 2019, Eq. 5.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        centers: int = 1,
        pooling: Literal["max", "soft"] = "max",
        temperature: float = 0.1,
        proxies_initializer: keras.initializers.Initializer | None = None,
        proxies_regularizer: keras.regularizers.Regularizer | None = None,
        dtype: object = "float32",
        **kwargs: object,
    ) -> None:
        super().__init__(dtype=dtype or "float32", **kwargs)
        check_full_precision(self)
        self.num_classes = check_whole("num_classes", num_classes, least=2)
        self.centers = check_whole("centers", centers, least=1)
        self.pooling = check_choice("pooling", pooling, ("max", "soft"))
        self.temperature = check_positive("temperature", temperature)
        if proxies_initializer is None:
            # The "fan out" of [K·C, d] is d.
            proxies_initializer = keras.initializers.VarianceScaling(
                1.0, "fan_out", "untruncated_normal"
            )
        self.proxies_initializer = _of_keras(
            "proxies_initializer", "initializer", keras.initializers.get, proxies_initializer
        )
        self.proxies_regularizer = _of_keras(
            "proxies_regularizer", "regularizer", keras.regularizers.get, proxies_regularizer
        )

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create the proxies."""
        dimensions = embedding_size(input_shape)
        self.proxies = self.add_weight(
            name="proxies",
            shape=(self.num_classes * self.centers, dimensions),
            initializer=self.proxies_initializer,
            regularizer=self.proxies_regularizer,
        )

    def center_cosines(self, embeddings: Tensor) -> Tensor:
        """Compute the cosines `[n, K, C]` of embeddings `[n, d]` to all centers."""
        z = normalize(ops.cast(embeddings, self.compute_dtype))
        proxies = normalize(ops.copy(self.proxies))
        cosines = matmul(z, ops.transpose(proxies))
        return ops.reshape(cosines, (-1, self.num_classes, self.centers))

    def call(self, embeddings: Tensor) -> Tensor:
        """Compute the class cosines `[n, K]`."""
        cosines = self.center_cosines(embeddings)
        if self.centers == 1:
            return ops.squeeze(cosines, axis=-1)
        if self.pooling == "max":
            return ops.max(cosines, axis=-1)
        return ops.sum(ops.softmax(cosines / self.temperature, axis=-1) * cosines, axis=-1)


def _of_keras(name: str, what: str, get: Callable[[Any], Any], identifier: object) -> Any:
    try:
        return get(identifier)
    except (TypeError, ValueError) as error:
        raise argument_error(name, f"None or a Keras {what}", identifier) from error
