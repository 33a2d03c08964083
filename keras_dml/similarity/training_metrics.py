"""Metrics of mined distances in the last batch, for `compile(metrics=...)`."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_dml._common.checks import check_choice
from keras_dml._common.types import Config, Tensor, TensorLike
from keras_dml._pairwise.arrays import as_labels
from keras_dml.similarity import distances
from keras_dml.similarity.distances import Distance
from keras_dml.similarity.losses import farthest, masks, nearest

__all__ = [
    "DistanceGapMetric",
    "DistanceMetric",
    "avg_neg",
    "avg_pos",
    "batch_class_ratio",
    "dist_gap",
    "max_neg",
    "max_pos",
    "min_neg",
    "min_pos",
    "sum_neg",
    "sum_pos",
]

registered = keras.saving.register_keras_serializable("Similarity")
_AGGREGATES = {"mean": ops.mean, "avg": ops.mean, "max": ops.max, "min": ops.min, "sum": ops.sum}


class _LastBatch(keras.metrics.Metric):
    """A metric whose result is a number of the last batch."""

    def __init__(self, distance: Distance | str | Config, name: str, **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.distance = distances.get(distance)
        self.value = self.add_variable((), "zeros", name="value")

    def of_batch(self, labels: Tensor, embeddings: Tensor) -> Tensor:
        """Return the number of a batch."""
        raise NotImplementedError

    def update_state(
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike | None = None
    ) -> None:
        """Replace the value by the number of this batch. Sample weights have no effect."""
        value = self.of_batch(as_labels(y_true), ops.convert_to_tensor(y_pred))
        self.value.assign(ops.cast(value, self.value.dtype))

    def result(self) -> Tensor:
        """Return the number of the last batch."""
        return self.value.value

    def get_config(self) -> Config:
        """Return the constructor's arguments."""
        return {**super().get_config(), "distance": distances.serialize(self.distance)}


@registered
class DistanceMetric(_LastBatch):
    """The distance of each anchor to its mined positive or negative, aggregated over a batch.

    Examples:
        >>> metric = DistanceMetric("cosine", aggregate="max")
        >>> metric.name
        'max_pos'

    Args:
        distance: A distance or its name.
        aggregate: `"mean"` or `"avg"`, `"max"`, `"min"`, or `"sum"`.
        anchor: `"positive"` or `"negative"`.
        name: Name in the logs. None: for example `"mean_pos"`.
        positive_mining_strategy: `"hard"` for the farthest positive, otherwise the nearest.
        negative_mining_strategy: `"hard"` for the nearest negative, or `"easy"` for the farthest.
    """

    def __init__(
        self,
        distance: Distance | str | Config,
        aggregate: str = "mean",
        anchor: str = "positive",
        name: str | None = None,
        positive_mining_strategy: str = "hard",
        negative_mining_strategy: str = "hard",
        **kwargs: Any,
    ) -> None:
        self.aggregate = check_choice("aggregate", aggregate, tuple(_AGGREGATES))
        self.anchor = check_choice("anchor", anchor, ("positive", "negative"))
        self.positive_mining_strategy = check_choice(
            "positive_mining_strategy", positive_mining_strategy, ("hard", "semi-hard", "easy")
        )
        self.negative_mining_strategy = check_choice(
            "negative_mining_strategy", negative_mining_strategy, ("hard", "easy")
        )
        super().__init__(distance, name or f"{aggregate}_{anchor[:3]}", **kwargs)

    def of_batch(self, labels: Tensor, embeddings: Tensor) -> Tensor:
        """Return the aggregate of a batch."""
        apart = self.distance(embeddings, embeddings)
        positive, negative = masks(labels, labels)
        if self.anchor == "positive":
            mined = farthest if self.positive_mining_strategy == "hard" else nearest
            found, _ = mined(apart, positive)
        else:
            mined = nearest if self.negative_mining_strategy == "hard" else farthest
            found, _ = mined(apart, negative)
        return _AGGREGATES[self.aggregate](found)

    def get_config(self) -> Config:
        """Return the constructor's arguments."""
        names = (
            "aggregate", "anchor", "positive_mining_strategy", "negative_mining_strategy",
        )  # fmt: skip
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


@registered
class DistanceGapMetric(_LastBatch):
    """The absolute difference between the largest positive and the smallest negative distance.

    Examples:
        >>> DistanceGapMetric("cosine").name
        'dist_gap'

    Args:
        distance: A distance or its name.
        name: Name in the logs.
    """

    def __init__(
        self, distance: Distance | str | Config, name: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(distance, name or "dist_gap", **kwargs)

    def of_batch(self, labels: Tensor, embeddings: Tensor) -> Tensor:
        """Return the gap of a batch."""
        apart = self.distance(embeddings, embeddings)
        positive, negative = masks(labels, labels)
        largest = ops.max(farthest(apart, positive)[0])
        return ops.abs(ops.min(nearest(apart, negative)[0]) - largest)


def dist_gap(distance: Distance | str) -> DistanceGapMetric:
    """Return a `DistanceGapMetric`.

    Examples:
        >>> dist_gap("cosine").name
        'dist_gap'
    """
    return DistanceGapMetric(distance)


def avg_pos(distance: Distance | str) -> DistanceMetric:
    """Return the mean distance to the farthest positive, named `mean_pos`.

    Examples:
        >>> avg_pos("cosine").name
        'mean_pos'
    """
    return DistanceMetric(distance, "mean")


def avg_neg(distance: Distance | str) -> DistanceMetric:
    """Return the mean distance to the nearest negative, named `mean_neg`.

    Examples:
        >>> avg_neg("cosine").name
        'mean_neg'
    """
    return DistanceMetric(distance, "mean", "negative")


def max_pos(distance: Distance | str) -> DistanceMetric:
    """Return the largest distance to the farthest positive.

    Examples:
        >>> max_pos("cosine").name
        'max_pos'
    """
    return DistanceMetric(distance, "max")


def max_neg(distance: Distance | str) -> DistanceMetric:
    """Return the largest distance to the nearest negative.

    Examples:
        >>> max_neg("cosine").name
        'max_neg'
    """
    return DistanceMetric(distance, "max", "negative")


def min_pos(distance: Distance | str) -> DistanceMetric:
    """Return the smallest distance to the farthest positive.

    Examples:
        >>> min_pos("cosine").name
        'min_pos'
    """
    return DistanceMetric(distance, "min")


def min_neg(distance: Distance | str) -> DistanceMetric:
    """Return the smallest distance to the nearest negative.

    Examples:
        >>> min_neg("cosine").name
        'min_neg'
    """
    return DistanceMetric(distance, "min", "negative")


def sum_pos(distance: Distance | str) -> DistanceMetric:
    """Return the sum of the distances to the farthest positives.

    Examples:
        >>> sum_pos("cosine").name
        'sum_pos'
    """
    return DistanceMetric(distance, "sum")


def sum_neg(distance: Distance | str) -> DistanceMetric:
    """Return the sum of the distances to the nearest negatives.

    Examples:
        >>> sum_neg("cosine").name
        'sum_neg'
    """
    return DistanceMetric(distance, "sum", "negative")


def batch_class_ratio(sampler: Any, num_batches: int = 100) -> float:
    """Return the mean number of examples per class in a batch.

    Examples:
        >>> batches = [(None, np.array([0, 0, 1, 1])), (None, np.array([0, 0, 0, 0]))]
        >>> batch_class_ratio(batches)
        3.0

    Args:
        sampler: A sampler, or any sequence of batches `(x, y)`.
        num_batches: Largest number of batches.
    """
    labels = (np.asarray(sampler[step][1]) for step in range(min(num_batches, len(sampler))))
    return float(np.mean([len(one) / len(np.unique(one)) for one in labels]))
