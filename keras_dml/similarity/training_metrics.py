"""Metrics of mined distances in the last batch, for `compile(metrics=...)`."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_dml._backend.configured import Configured
from keras_dml._common.checks import check_choice
from keras_dml._common.exports import public_names
from keras_dml._common.types import Config, Tensor, TensorLike
from keras_dml._pairwise.arrays import as_labels
from keras_dml.similarity import _mining, distances
from keras_dml.similarity.distances import Distance

registered = keras.saving.register_keras_serializable("Similarity")
_AGGREGATES = {"mean": ops.mean, "avg": ops.mean, "max": ops.max, "min": ops.min, "sum": ops.sum}


class _LastBatch(Configured, keras.metrics.Metric):
    """A metric whose result is a number of the last batch. A subclass defines `of_batch`."""

    default_name = ""

    def __init__(
        self, distance: Distance | str | Config, name: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(name=name or self.default_name, **kwargs)
        self.distance = distances.get(distance)
        self.value = self.add_variable((), "zeros", name="value")

    def of_batch(self, apart: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Return the number of a batch from its distances and masks `[n, n]`."""
        raise NotImplementedError

    def update_state(
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike | None = None
    ) -> None:
        """Replace the value by the number of this batch. Sample weights have no effect."""
        labels = as_labels(y_true)
        value = self.of_batch(self.distance(y_pred, y_pred), *_mining.masks(labels, labels))
        self.value.assign(ops.cast(value, self.value.dtype))

    def result(self) -> Tensor:
        """Return the number of the last batch."""
        return self.value.value


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

    def of_batch(self, apart: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Return the aggregate of a batch."""
        if self.anchor == "positive":
            mined, _ = _mining.positives(apart, positive, self.positive_mining_strategy)
        else:
            mined, _ = _mining.negatives(apart, positive, negative, self.negative_mining_strategy)
        return _AGGREGATES[self.aggregate](mined)


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

    default_name = "dist_gap"

    def of_batch(self, apart: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Return the gap of a batch."""
        largest = ops.max(_mining.farthest(apart, positive)[0])
        return ops.abs(ops.min(_mining.nearest(apart, negative)[0]) - largest)


def dist_gap(distance: Distance | str) -> DistanceGapMetric:
    """Return a `DistanceGapMetric`.

    Examples:
        >>> dist_gap("cosine").name
        'dist_gap'
    """
    return DistanceGapMetric(distance)


def _metric_of(
    name: str, aggregate: str, anchor: str, what: str
) -> Callable[[Distance | str], DistanceMetric]:
    """Return the public function of an aggregate over the mined positives or negatives."""

    def metric(distance: Distance | str) -> DistanceMetric:
        return DistanceMetric(distance, aggregate, anchor)

    mined = "farthest positive" if anchor == "positive" else "nearest negative"
    metric.__name__ = metric.__qualname__ = name
    metric.__doc__ = f"""Return the {what} distance of the anchors to the {mined}.

    Examples:
        >>> {name}("cosine").name
        '{aggregate}_{anchor[:3]}'
    """
    return metric


avg_pos = _metric_of("avg_pos", "mean", "positive", "mean")
avg_neg = _metric_of("avg_neg", "mean", "negative", "mean")
max_pos = _metric_of("max_pos", "max", "positive", "largest")
max_neg = _metric_of("max_neg", "max", "negative", "largest")
min_pos = _metric_of("min_pos", "min", "positive", "smallest")
min_neg = _metric_of("min_neg", "min", "negative", "smallest")
sum_pos = _metric_of("sum_pos", "sum", "positive", "summed")
sum_neg = _metric_of("sum_neg", "sum", "negative", "summed")


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


__all__ = public_names(__name__)
