"""An embedding model with a head of class proxies, and the dominant centers of its classes."""

from __future__ import annotations

from typing import Literal

import keras
import numpy as np
from keras import ops

from keras_dml._common.checks import check_number
from keras_dml._common.errors import ArgumentError
from keras_dml._common.types import TensorLike
from keras_dml._pairwise.arrays import as_labels, checked_class_ids
from keras_dml.layers.proxy_head import ProxyHead
from keras_dml.models.embeddings import symbolic_embedding
from keras_dml.models.sampled_classes import SampledProxyModel


def proxy_model(
    embedding: keras.Model,
    num_classes: int,
    centers: int = 1,
    pooling: Literal["max", "soft"] = "max",
    temperature: float = 0.1,
    proxies_initializer: keras.initializers.Initializer | None = None,
    proxies_regularizer: keras.regularizers.Regularizer | None = None,
    name: str = "proxy_model",
    *,
    sampled: float = 1.0,
    seed: int = 0,
) -> keras.Model:
    """Add a `ProxyHead` to an embedding model: images to the cosines to K classes.

    Examples:
        >>> classes = proxy_model(embedding, num_classes=100)
        >>> faster = keras_dml.optimizers.multipliers(classes.get_layer("proxy_head"), 100)
        >>> optimizer = keras_dml.optimizers.CoupledAdam(1e-4, learning_rate_multipliers=faster)
        >>> classes.compile(optimizer, keras_dml.losses.ArcFaceLoss())

    Args:
        embedding: A functional or sequential `keras.Model` from images to embeddings `[n, d]`. Use
            this model for evaluation, search, and serving.
        num_classes, centers, pooling, temperature, proxies_initializer, proxies_regularizer: As in
            `ProxyHead`.
        name: Name of the model.
        sampled: Fraction of the classes that a training step compares with, as in `ProxyHead`. 1
            is the full head.
        seed: Seed of the samples.

    Returns:
        A `keras.Model` from images to cosines `[n, K]`. It shares the layers of `embedding`, and
        its layer `proxy_head` contains the proxies. With `sampled` below 1, it is a
        `DistributedModel` that trains in `fit` with any loss over proxies.

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
        sampled=sampled,
        seed=seed,
        name="proxy_head",
    )
    inputs, embeddings = symbolic_embedding(embedding)
    model = keras.Model if head.sampled == 1 else SampledProxyModel
    return model(inputs, head(embeddings), name=name)


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
