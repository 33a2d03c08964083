"""Heads with weights: class proxies for losses on cosines, and learned boundaries."""

from collections.abc import Callable
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from keras_dml._backend.configured import Configured, ConfiguredValue
from keras_dml._common.checks import check_choice, check_number, check_positive, check_whole
from keras_dml._common.errors import ArgumentError, argument_error
from keras_dml._common.types import Tensor, TensorLike
from keras_dml._pairwise.arithmetic import matmul
from keras_dml._pairwise.arrays import as_labels, checked_class_ids
from keras_dml._pairwise.pairs import normalize
from keras_dml.models.pooling import symbolic_embedding


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
        dtype: float32 or float64. name, trainable: As in every Keras layer.

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
        _check_full_precision(self)
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
        dimensions = _dimensions(input_shape)
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


@keras.saving.register_keras_serializable("keras_dml")
class Boundary(Configured, keras.Layer):
    """A layer that appends learned boundaries to embeddings `[n, d]`, for `MarginLoss`.

    The output is `[n, d + B]`. The layer has one weight, `boundaries` `[B]`: one boundary for all
    classes, or one per class.

    Examples:
        >>> boundary = Boundary()  # after the embedding; then MarginLoss(boundaries=1)
        >>> boundary(np.ones((2, 8), "float32")).shape
        TensorShape([2, 9])

    Args:
        num_classes: B, for one boundary per class. None creates a single boundary.
        initial: Initial boundary, above 0: a distance between unit vectors.
        dtype: float32 or float64. name, trainable: As in every Keras layer.

    Raises:
        ValueError: A number is out of range, `dtype` is not supported, or the inputs are not
            `[n, d]`.

    Reference: Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017, section 4.2.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        *,
        initial: float = 1.2,
        dtype: object = "float32",
        **kwargs: object,
    ) -> None:
        super().__init__(dtype=dtype or "float32", **kwargs)
        _check_full_precision(self)
        if num_classes is not None:
            num_classes = check_whole("num_classes", num_classes, least=2)
        self.num_classes = num_classes
        self.initial = check_positive("initial", initial)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create the boundaries."""
        _dimensions(input_shape)
        self.boundaries = self.add_weight(
            name="boundaries",
            shape=(self.num_classes or 1,),
            initializer=keras.initializers.Constant(self.initial),
        )

    def call(self, embeddings: Tensor) -> Tensor:
        """Append the boundaries to the embeddings."""
        embeddings = ops.cast(embeddings, self.compute_dtype)
        shape = (ops.shape(embeddings)[0], self.num_classes or 1)
        behind = ops.broadcast_to(ops.convert_to_tensor(self.boundaries)[None], shape)
        return ops.concatenate([embeddings, behind], axis=-1)


@keras.saving.register_keras_serializable("keras_dml")
class CenterRegularizer(ConfiguredValue, keras.regularizers.Regularizer):
    """SoftTriple's regularizer: merges superfluous centers of a class.

    `τ / (K C (C − 1)) Σ_k Σ_{t<u} √(2 + 1e-5 − 2 p_kt · p_ku)` over the l2-normalized centers of
    each of K classes. It is 0 for one center per class. The 1e-5 keeps the gradient of coincident
    centers finite.

    Examples:
        >>> head = ProxyHead(3, centers=4, pooling="soft", proxies_regularizer=CenterRegularizer(4))

    Args:
        centers: C, the number of proxies per class, as in the `ProxyHead` with this regularizer.
        weight: τ, at least 0.

    Raises:
        ValueError: A number is out of range, or the number of rows of the proxies is not a multiple
            of `centers`.

    Reference: Qian et al. 2019, Eq. 9; τ = 0.2 is the authors'.
    """

    def __init__(self, centers: int, weight: float = 0.2) -> None:
        self.centers = check_whole("centers", centers, least=1)
        self.weight = check_number("weight", weight, least=0)

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the regularizer of proxies `[K·C, d]`."""
        rows, dimensions = x.shape
        if rows % self.centers:
            raise ArgumentError(
                f"centers must divide the number of proxies, but got {self.centers} for {rows} "
                "proxies. Set the centers of the head."
            )
        if self.centers == 1:
            return ops.zeros((), dtype=x.dtype)
        classes = rows // self.centers
        p = ops.reshape(normalize(ops.copy(x)), (classes, self.centers, dimensions))
        cosines = matmul(p, ops.transpose(p, (0, 2, 1)))
        above = np.triu(np.ones((self.centers, self.centers), dtype=bool), k=1)
        # Replace masked entries with 1, whose square root has a finite gradient.
        squares = ops.where(above[None], 2.0 + 1e-5 - 2.0 * cosines, ops.ones_like(cosines))
        roots = ops.where(above[None], ops.sqrt(squares), ops.zeros_like(cosines))
        return self.weight / (rows * (self.centers - 1)) * ops.sum(roots)


def proxy_model(
    embedding: keras.Model,
    num_classes: int,
    centers: int = 1,
    pooling: Literal["max", "soft"] = "max",
    temperature: float = 0.1,
    proxies_initializer: keras.initializers.Initializer | None = None,
    proxies_regularizer: keras.regularizers.Regularizer | None = None,
    name: str = "proxy_model",
) -> keras.Model:
    """Add a `ProxyHead` to an embedding model: images to the cosines to K classes.

    Examples:
        >>> classes = proxy_model(embedding, num_classes=100)
        >>> faster = keras_dml.optimizers.multipliers(classes.get_layer("proxy_head"), 100)
        >>> optimizer = keras_dml.optimizers.Adam(1e-4, learning_rate_multipliers=faster)
        >>> classes.compile(optimizer, keras_dml.losses.ArcFaceLoss())

    Args:
        embedding: A functional or sequential `keras.Model` from images to embeddings `[n, d]`. Use
            this model for evaluation, search, and serving.
        num_classes, centers, pooling, temperature, proxies_initializer, proxies_regularizer: As in
            `ProxyHead`.
        name: Name of the model.

    Returns:
        A `keras.Model` from images to cosines `[n, K]`. It shares the layers of `embedding`, and
        its layer `proxy_head` contains the proxies.

    Raises:
        TypeError: `embedding` is not a built functional or sequential model.
        ValueError: The output of `embedding` is not `[n, d]`, or as in `ProxyHead`.
    """
    head = ProxyHead(
        num_classes,
        centers=centers,
        pooling=pooling,
        temperature=temperature,
        proxies_initializer=proxies_initializer,
        proxies_regularizer=proxies_regularizer,
        name="proxy_head",
    )
    inputs, embeddings = symbolic_embedding(embedding)
    return keras.Model(inputs, head(embeddings), name=name)


def dominant_centers(
    head: ProxyHead, embeddings: TensorLike, class_ids: TensorLike, threshold: float = 75.0
) -> tuple[np.ndarray, np.ndarray]:
    """Find each class's center with the most nearest images, and the images close to it.

    Images farther from that center than the threshold are probably mislabeled. The authors drop
    these images, keep only the dominant centers, and retrain.

    Examples:
        >>> head = ProxyHead(num_classes=2, centers=3)
        >>> z, class_ids = np.eye(4, dtype="float32"), np.array([0, 0, 1, 1])
        >>> cosines = head(z)
        >>> centers, near = dominant_centers(head, z, class_ids)

    Args:
        head: A built `ProxyHead`.
        embeddings: `[n, d]`, of the training images.
        class_ids: `[n]` or `[n, 1]`, in 0 … K − 1.
        threshold: Largest angle to the dominant center, in degrees, from 0 to 180.

    Returns:
        `(centers, near)`. `centers` is int `[K]`: a number below C per class, or −1 for a class
        without images. `near` is bool `[n]`: whether an image is within the threshold of the
        dominant center of its class.

    Raises:
        ValueError: Class ids are outside 0 … K − 1, or the threshold is outside [0, 180].

    Reference: Deng et al. 2020, section 3.3.
    """
    threshold = check_number("threshold", threshold, least=0, most=180)
    ids = ops.convert_to_numpy(checked_class_ids(as_labels(class_ids, "class_ids"))).astype(int)
    outside = (ids < 0) | (ids >= head.num_classes)
    if outside.any():
        raise ArgumentError(
            f"class_ids must be from 0 to {head.num_classes - 1}, the classes of the head, but got "
            f"{ids[outside][0]}."
        )
    cosines = ops.convert_to_numpy(head.center_cosines(ops.convert_to_tensor(embeddings)))
    own = cosines[np.arange(len(ids)), ids]
    votes = np.zeros((head.num_classes, head.centers), dtype=int)
    np.add.at(votes, (ids, own.argmax(axis=1)), 1)
    centers = np.where(votes.any(axis=1), votes.argmax(axis=1), -1)
    near = own[np.arange(len(ids)), centers[ids]] >= np.cos(np.radians(threshold))
    return centers, near


def _check_full_precision(layer: keras.Layer) -> None:
    if layer.compute_dtype not in ("float32", "float64"):
        advice = "Half precision merges cosines."
        raise argument_error("dtype", "float32 or float64", layer.compute_dtype, advice=advice)


def _of_keras(name: str, what: str, get: Callable[[Any], Any], identifier: object) -> Any:
    try:
        return get(identifier)
    except (TypeError, ValueError) as error:
        raise argument_error(name, f"None or a Keras {what}", identifier) from error


def _dimensions(input_shape: tuple[int | None, ...]) -> int:
    if len(input_shape) != 2 or input_shape[1] is None:
        raise ArgumentError(
            f"inputs must be embeddings [n, d] of a known d, but got shape {tuple(input_shape)}."
        )
    return input_shape[1]
