"""Distances of all queries to all keys."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_dml._backend.configured import Configured
from keras_dml._common.errors import argument_error
from keras_dml._common.exports import public_names
from keras_dml._common.types import Config, Tensor, TensorLike
from keras_dml._pairwise.arithmetic import matmul, maximum
from keras_dml._pairwise.pairs import safe_sqrt, squared_distances

_CLASSES: dict[str, "type[Distance]"] = {}


def _registered(cls: "type[Distance]") -> "type[Distance]":
    """Register a distance with Keras, and for `get`."""
    _CLASSES[cls.__name__] = cls
    return keras.saving.register_keras_serializable("Similarity")(cls)


class Distance(Configured):
    """A distance between embeddings. A subclass defines `call`.

    Examples:
        >>> class Chebyshev(Distance):
        ...     name = "chebyshev"
        ...     def call(self, query_embeddings, key_embeddings):
        ...         return np.abs(query_embeddings[:, None] - key_embeddings[None]).max(axis=-1)
        >>> Chebyshev()
        <Distance chebyshev>

    Args:
        name: Name of the distance. None: the name of the class.
        aliases: Other names. None: the aliases of the class.
    """

    name: str = "distance"
    aliases: Sequence[str] = ()

    def __init__(self, name: str | None = None, aliases: Sequence[str] | None = None) -> None:
        self.name = self.name if name is None else name
        self.aliases = list(self.aliases if aliases is None else aliases)

    def call(self, query_embeddings: Any, key_embeddings: Any) -> Any:
        """Compute the distances `[q, k]` of queries `[q, d]` to keys `[k, d]`."""
        raise NotImplementedError

    def __call__(self, query_embeddings: TensorLike, key_embeddings: TensorLike) -> Tensor:
        """Convert the embeddings to tensors, and compute the distances `[q, k]`."""
        return self.call(*map(ops.convert_to_tensor, (query_embeddings, key_embeddings)))

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<Distance {self.name}>"


@_registered
class InnerProductSimilarity(Distance):
    """The inner product `QKᵀ`: a similarity, so an index does not accept it.

    Examples:
        >>> float(InnerProductSimilarity()([[1.0, 2.0]], [[3.0, 4.0]])[0, 0])
        11.0
    """

    name = "inner_product"
    aliases = ("ip",)

    def call(self, query_embeddings: Tensor, key_embeddings: Tensor) -> Tensor:
        """Compute the inner products `[q, k]`."""
        return matmul(query_embeddings, ops.transpose(key_embeddings))


@_registered
class CosineDistance(Distance):
    """The distance `max(0, 1 − QKᵀ)` of unit embeddings. It does not normalize them.

    Examples:
        >>> round(float(CosineDistance()([[0.6, 0.8]], [[0.0, 1.0]])[0, 0]), 3)
        0.2
    """

    name = "cosine"

    def call(self, query_embeddings: Tensor, key_embeddings: Tensor) -> Tensor:
        """Compute the distances `[q, k]`."""
        return maximum(1.0 - matmul(query_embeddings, ops.transpose(key_embeddings)), 0.0)


@_registered
class SquaredEuclideanDistance(Distance):
    """The squared Euclidean distance.

    Examples:
        >>> float(SquaredEuclideanDistance()([[0.0, 0.0]], [[3.0, 4.0]])[0, 0])
        25.0
    """

    name = "squared_euclidean"
    aliases = ("sql2", "sqeuclidean")

    def call(self, query_embeddings: Tensor, key_embeddings: Tensor) -> Tensor:
        """Compute the squared distances `[q, k]`."""
        return squared_distances(query_embeddings, key_embeddings)


@_registered
class EuclideanDistance(Distance):
    """The Euclidean distance. It also works in float16.

    Examples:
        >>> float(EuclideanDistance()([[0.0, 0.0]], [[3.0, 4.0]])[0, 0])
        5.0
    """

    name = "euclidean"
    aliases = ("l2", "pythagorean")

    def call(self, query_embeddings: Tensor, key_embeddings: Tensor) -> Tensor:
        """Compute the distances `[q, k]`. Equal embeddings have the gradient 0."""
        return safe_sqrt(SquaredEuclideanDistance().call(query_embeddings, key_embeddings))


@_registered
class ManhattanDistance(Distance):
    """The sum of absolute differences. Takes `q · k · d` numbers of memory.

    Examples:
        >>> float(ManhattanDistance()([[0.0, 0.0]], [[3.0, 4.0]])[0, 0])
        7.0
    """

    name = "manhattan"
    aliases = ("l1", "taxicab")

    def call(self, query_embeddings: Tensor, key_embeddings: Tensor) -> Tensor:
        """Compute the distances `[q, k]`."""
        return ops.sum(ops.abs(_differences(query_embeddings, key_embeddings)), axis=-1)


@_registered
class SNRDistance(Distance):
    """The variance of `q − k` divided by the variance of q. Not symmetric.

    Examples:
        >>> float(SNRDistance()([[1.0, 2.0]], [[2.0, 1.0]])[0, 0])
        4.0
    """

    name = "snr"
    aliases = ("signal-to-noise-ratio",)

    def call(self, query_embeddings: Tensor, key_embeddings: Tensor) -> Tensor:
        """Compute the distances `[q, k]`."""
        noise = ops.var(_differences(query_embeddings, key_embeddings), axis=-1)
        return noise / ops.var(query_embeddings, axis=1)[:, None]


def _differences(queries: Tensor, keys: Tensor) -> Tensor:
    return queries[:, None, :] - keys[None, :, :]


def get(identifier: Distance | str | Config) -> Distance:
    """Return a distance from an object, a name, an alias, a class name, or a configuration.

    Examples:
        >>> get("L2"), get(CosineDistance())
        (<Distance euclidean>, <Distance cosine>)

    Raises:
        ValueError: The name is unknown. The message lists the names.
    """
    if isinstance(identifier, Distance):
        return identifier
    if isinstance(identifier, dict):
        return deserialize(identifier)
    if isinstance(identifier, str):
        name = identifier.lower().strip()
        for each in _CLASSES.values():
            if name in (each.name, *each.aliases, each.__name__.lower()):
                return each()
    names = sorted(name for each in _CLASSES.values() for name in (each.name, *each.aliases))
    raise argument_error("distance", f"a Distance or one of {', '.join(names)}", identifier)


distance_canonicalizer = get


def serialize(distance: Distance) -> Config:
    """Return the serialized form of a distance.

    Examples:
        >>> serialize(CosineDistance())["class_name"]
        'CosineDistance'
    """
    return keras.saving.serialize_keras_object(distance)


def deserialize(config: Config) -> Distance:
    """Create a distance from its serialized form, also from one of TensorFlow Similarity.

    Examples:
        >>> deserialize(serialize(EuclideanDistance()))
        <Distance euclidean>
    """
    name = str(config.get("class_name", "")).rpartition(">")[2]
    if name in _CLASSES:
        return get(name)
    if "class_name" not in config and "name" in config:
        return get(config["name"])
    return keras.saving.deserialize_keras_object(config)


__all__ = public_names(__name__)
