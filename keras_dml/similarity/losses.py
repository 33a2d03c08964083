"""Losses over the distances in a batch.

Unlike `keras_dml.losses`, these losses do not normalize embeddings, and the mean includes anchors
with the value 0. Class ids stay integers. Under `tf.distribute`, each replica compares only its own
examples.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Self

import keras
from keras import ops

from keras_dml._backend import private
from keras_dml._backend.configured import Configured
from keras_dml._common.checks import check_choice, check_whole
from keras_dml._common.errors import ArgumentError, argument_error
from keras_dml._common.exports import public_names
from keras_dml._common.types import Config, Tensor, TensorLike
from keras_dml._pairwise.arithmetic import log_one_plus_sum_exp, masked_sum, minimum
from keras_dml._pairwise.arrays import (
    as_embeddings,
    as_labels,
    check_order,
    checked_class_ids,
    widest_integers,
)
from keras_dml.losses.base import LabelsAsTheyAre
from keras_dml.similarity import _mining, distances
from keras_dml.similarity.distances import Distance

registered = keras.saving.register_keras_serializable("Similarity")


class MetricLoss(keras.losses.Loss):
    """A loss that calls a function of the labels and embeddings of queries and keys.

    Examples:
        >>> def spread(query_labels, queries, key_labels, keys, power):
        ...     return np.abs(queries - keys.mean(axis=0)).sum(axis=-1) ** power
        >>> loss = MetricLoss(spread, power=2.0)
        >>> loss.reduction
        'sum_over_batch_size'

    Args:
        fn: Function `(labels, embeddings, labels, embeddings, **kwargs)` of the batch as queries
            and as keys. Returns values `[n, 1]` or `[n]`.
        reduction: A Keras reduction. `"auto"` is the mean over the batch.
        name: Name of the loss.
        kwargs: Further arguments of `fn`. `distance` can be a name.
    """

    def __init__(
        self,
        fn: Callable[..., Tensor],
        reduction: str | None = "auto",
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        reduction = "sum_over_batch_size" if reduction == "auto" else reduction
        super().__init__(name=name, reduction=reduction, dtype=kwargs.pop("dtype", None))
        if "distance" in kwargs:
            kwargs["distance"] = self.distance = distances.get(kwargs["distance"])
        self.fn, self.arguments = fn, kwargs

    def __call__(
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike | None = None
    ) -> Tensor:
        """Compute the reduced loss. Integers in `y_true` stay integers."""
        check_order(y_true, y_pred)
        labels = checked_class_ids(as_labels(y_true))
        return LabelsAsTheyAre(self, labels)((), as_embeddings(y_pred), sample_weight)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Compute the value of each example."""
        return self.fn(y_true, y_pred, y_true, y_pred, **self.arguments)


class _DistanceLoss(Configured, MetricLoss):
    """A loss of the distances between queries and keys. A subclass defines `values`."""

    takes_memory = True

    def __init__(self, distance: Distance | str, name: str, **kwargs: Any) -> None:
        super().__init__(self.between, name=name, **kwargs)
        self.distance = distances.get(distance)

    def between(
        self,
        query_labels: Tensor,
        queries: Tensor,
        key_labels: Tensor,
        keys: Tensor,
        valid: Tensor | bool = True,
    ) -> Tensor:
        """Compute the value of each query against the valid keys."""
        apart = self.distance(queries, keys)
        return self.values(apart, *_mining.masks(query_labels, key_labels, valid))

    def values(self, apart: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Compute the value of each query from distances and masks `[q, k]`."""
        raise NotImplementedError


def _of_anchors_with_both(values: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    both = ops.logical_and(ops.any(positive, axis=1), ops.any(negative, axis=1))
    return ops.where(both, values, ops.zeros_like(values))[:, None]


@registered
class MultiSimilarityLoss(_DistanceLoss):
    """The multi-similarity loss with mining.

    `log(1 + Σ_P exp(α(D + λ − c))) / α + log(1 + Σ_N exp(−β(D + λ − c))) / β`, over positives with
    `D > min_N D − ε` and negatives with `D < max_P D + ε`. 0 if one of the two sets is empty.

    For unit embeddings and cosine distance, it has the value of
    `keras_dml.losses.MultiSimilarityLoss` with `base=1 + lmda - center` per anchor.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> round(float(MultiSimilarityLoss()(labels, z)), 4)
        0.4054

    Args:
        distance: A distance or its name.
        alpha, beta, epsilon, lmda, center: α, β, ε, λ, and c.
        name: Name of the loss.
        kwargs: `reduction` and `dtype`.
    """

    def __init__(
        self,
        distance: Distance | str = "cosine",
        alpha: float = 2.0,
        beta: float = 40.0,
        epsilon: float = 0.1,
        lmda: float = 0.5,
        center: float = 1.0,
        name: str = "multisim_loss",
        **kwargs: Any,
    ) -> None:
        super().__init__(distance, name, **kwargs)
        self.alpha, self.beta, self.epsilon = alpha, beta, epsilon
        self.lmda, self.center = lmda, center

    def values(self, apart: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Compute the values `[q, 1]`."""
        near_limit = _mining.nearest(apart, negative)[0] - self.epsilon
        far_limit = _mining.farthest(apart, positive)[0] + self.epsilon
        positive = ops.logical_and(positive, apart > near_limit)
        negative = ops.logical_and(negative, apart < far_limit)
        excess = apart + (self.lmda - self.center)
        value = log_one_plus_sum_exp(self.alpha * excess, positive) / self.alpha
        value = value + log_one_plus_sum_exp(-self.beta * excess, negative) / self.beta
        return _of_anchors_with_both(value, positive, negative)


@registered
class TripletLoss(_DistanceLoss):
    """The triplet loss with one triplet per anchor: `max(0, d⁺ − d⁻ + margin)`.

    With `margin=None`, `softplus(d⁺ − d⁻)`. The semi-hard negative is the nearest one farther than
    the farthest positive, or else the farthest negative. An anchor without positives has
    `d⁺ = min_j D_ij − 10⁻⁶`, and an anchor without negatives `d⁻ = max_j D_ij + 10⁻⁶`.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> round(float(TripletLoss(margin=1.0)(labels, z)), 4)
        0.7

    Args:
        distance: A distance or its name.
        positive_mining_strategy: `"hard"` (farthest) or `"easy"` (nearest).
        negative_mining_strategy: `"hard"` (nearest), `"semi-hard"`, or `"easy"` (farthest).
        margin: Margin, or None.
        name: Name of the loss.
        kwargs: `reduction` and `dtype`.
    """

    default_name = "triplet_loss"
    compares_positives = False

    def __init__(
        self,
        distance: Distance | str = "cosine",
        positive_mining_strategy: str = "hard",
        negative_mining_strategy: str = "semi-hard",
        margin: float | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(distance, name or self.default_name, **kwargs)
        self.positive_mining_strategy = check_choice(
            "positive_mining_strategy", positive_mining_strategy, ("easy", "hard")
        )
        self.negative_mining_strategy = check_choice(
            "negative_mining_strategy", negative_mining_strategy, ("easy", "hard", "semi-hard")
        )
        self.margin = margin

    def values(self, apart: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Compute the values `[q, 1]`."""
        near, positives = _mining.positives(apart, positive, self.positive_mining_strategy)
        far, negatives = _mining.negatives(apart, positive, negative, self.negative_mining_strategy)
        if self.compares_positives:
            of_positives = ops.take(apart, positives, axis=0)
            between = ops.take_along_axis(of_positives, negatives[:, None], axis=1)
            far = ops.minimum(far, between)
        if self.margin is None:
            return ops.softplus(near - far)
        return ops.relu(near - far + self.margin)


@registered
class PNLoss(TripletLoss):
    """The triplet loss with `d⁻` replaced by `min(d⁻, D[positive, negative])`.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> bool(PNLoss(margin=1.0)(labels, z) >= TripletLoss(margin=1.0)(labels, z))
        True

    Args:
        distance, positive_mining_strategy, negative_mining_strategy, margin, name, kwargs: As in
            `TripletLoss`.
    """

    takes_memory = False
    default_name = "pn_loss"
    compares_positives = True


@registered
class CircleLoss(_DistanceLoss):
    """The circle loss with a sum of two logarithms, and gradients through the weights.

    `log(1 + Σ_P exp(γ(m + D)₊(D − m))) + log(1 + Σ_N exp(γ(1 + m − D)₊(1 − m − D)))`, and 0 without
    positives or negatives. `keras_dml.losses.CircleLoss` is the loss of the paper.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> round(float(CircleLoss()(labels, z)), 3)
        26.953

    Args:
        distance: A distance or its name.
        gamma, margin: γ and m.
        name: Name of the loss.
        kwargs: `reduction` and `dtype`.
    """

    def __init__(
        self,
        distance: Distance | str = "cosine",
        gamma: float = 80.0,
        margin: float = 0.4,
        name: str = "circle_loss",
        **kwargs: Any,
    ) -> None:
        super().__init__(distance, name, **kwargs)
        self.gamma, self.margin = gamma, margin

    def values(self, apart: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Compute the values `[q, 1]`."""
        margin = self.margin
        near = self.gamma * ops.relu(margin + apart) * (apart - margin)
        far = self.gamma * ops.relu(1.0 + margin - apart) * (1.0 - margin - apart)
        value = log_one_plus_sum_exp(near, positive) + log_one_plus_sum_exp(far, negative)
        return _of_anchors_with_both(value, positive, negative)


@registered
class SoftNearestNeighborLoss(_DistanceLoss):
    """The loss `−log(10⁻⁹ + Σ_P exp(−D/T) / Σ_{j≠i} exp(−D/T))`, and 0 without positives.

    For unit embeddings and the default distance, `keras_dml.losses.SNCALoss(T/2)` has the
    same value if each anchor has a positive.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> round(float(SoftNearestNeighborLoss()(labels, z)), 4)
        1.0502

    Args:
        distance: A distance or its name.
        temperature: T.
        name: Name of the loss.
        kwargs: `reduction` and `dtype`.
    """

    def __init__(
        self,
        distance: Distance | str = "sql2",
        temperature: float = 1.0,
        name: str = "soft_nn_loss",
        **kwargs: Any,
    ) -> None:
        super().__init__(distance, name, **kwargs)
        self.temperature = temperature

    def values(self, apart: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Compute the values `[q]`."""
        weights = ops.exp(-apart / self.temperature)
        others = masked_sum(weights, ops.logical_or(positive, negative))
        shares = masked_sum(weights, positive) / ops.where(others > 0.0, others, 1.0)
        value = -ops.log(1e-9 + shares)
        return ops.where(ops.any(positive, axis=1), value, ops.zeros_like(value))


@registered
class XBM(Configured, MetricLoss):
    """A loss of the batch against a memory of the last examples, which includes the batch.

    The memory is part of the loss. Train it in a `SimilarityModel`, which passes the memory through
    the steps of JAX. During the warmup, the memory is the batch. Validation batches are stored,
    too. `keras_dml.models.CrossBatchMemory` is the method of the paper.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = XBM(MultiSimilarityLoss(), memory_size=8)
        >>> [round(float(loss(labels, rows)), 4) for rows in (z, z[::-1].copy())]
        [0.4054, 1.2543]

    Args:
        loss: A loss of this module, but not `PNLoss` or `XBM`.
        memory_size: Number of examples in the memory. The newest come first.
        warmup_steps: Number of first steps that store nothing.
        reduction, name: As in `MetricLoss`.

    Raises:
        ValueError: The loss does not support a memory, or another model trains this loss.
    """

    def __init__(
        self,
        loss: MetricLoss,
        memory_size: int,
        warmup_steps: int = 0,
        reduction: str | None = "auto",
        name: str = "xbm_loss",
        **kwargs: Any,
    ) -> None:
        if not getattr(loss, "takes_memory", False):
            wanted = "MultiSimilarityLoss, TripletLoss, CircleLoss, or SoftNearestNeighborLoss"
            raise argument_error("loss", wanted, loss)
        super().__init__(loss.fn, reduction, name, **kwargs)
        self.distance = loss.distance
        self.loss = loss
        self.memory_size = check_whole("memory_size", memory_size, least=1)
        self.warmup_steps = check_whole("warmup_steps", warmup_steps, least=0)
        self.variables: list[keras.Variable] = []
        self.is_owned = False

    def build(self, dimensions: int) -> None:
        """Create the memory of embeddings with this length."""
        size, whole = self.memory_size, widest_integers()
        states = [((size, dimensions), self.dtype), ((size,), whole), ((), whole), ((), whole)]
        self.variables = [
            keras.Variable("zeros", shape=shape, dtype=dtype, trainable=False)
            for shape, dtype in states
        ]

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Compute the values of the batch against the memory, and store the batch."""
        if private.in_stateless_scope() and not self.is_owned:
            raise ArgumentError(
                "XBM must be the loss of a SimilarityModel, but got another model. Its memory "
                "changes in each step."
            )
        if not self.variables:
            self.build(y_pred.shape[1])
        memory, memory_labels, filled, step = self.variables
        labels = ops.cast(ops.reshape(y_true, (-1,)), memory_labels.dtype)
        keys = ops.concatenate([y_pred, memory.value], axis=0)[: self.memory_size]
        key_labels = ops.concatenate([labels, memory_labels.value], axis=0)[: self.memory_size]
        size = ops.cast(ops.shape(y_pred)[0], filled.dtype) + filled.value
        size = minimum(size, self.memory_size)
        valid = ops.arange(self.memory_size, dtype=filled.dtype) < size
        step.assign(step.value + 1)
        stores = step.value > self.warmup_steps
        new = (ops.stop_gradient(keys), key_labels, size)
        for variable, value in zip((memory, memory_labels, filled), new):
            variable.assign(ops.where(stores, value, variable.value))
        # Empty rows repeat the newest key, so that they are never the nearest or farthest of all.
        keys = ops.where(valid[:, None], keys, keys[:1])
        return self.fn(labels, y_pred, key_labels, keys, valid)

    @classmethod
    def from_config(cls, config: Config, custom_objects: Mapping[str, Any] | None = None) -> Self:
        """Create the loss from its configuration."""
        # Files of TensorFlow Similarity also have the arguments of the inner loss.
        known = inspect.signature(cls).parameters
        own = {name: value for name, value in config.items() if name in known}
        return super().from_config(own, custom_objects)


__all__ = public_names(__name__)
