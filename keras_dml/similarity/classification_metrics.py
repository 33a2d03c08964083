"""Scores of matches and mismatches, as arrays over distance thresholds."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_dml._common.exports import public_names
from keras_dml.similarity._names import from_name


class ClassificationMetric:
    """A score from counts. A subclass defines `compute`.

    A true positive has the right label within the threshold. A false negative has the right label
    beyond the threshold, so the base of `recall` are the queries whose predicted label is right.

    Examples:
        >>> Recall().compute(tp=np.array([3.0]), fp=0, tn=0, fn=np.array([1.0]), count=4)
        array([0.75])

    Args:
        name: Name in results. Empty: the first alias, or the canonical name.

    Attributes:
        canonical_name: Name in saved indexes.
        aliases: Other names.
        maximize: Whether larger is better.
        increasing: Whether the score rises with the threshold.
    """

    canonical_name = ""
    aliases: Sequence[str] = ()
    maximize = True
    increasing = True

    def __init__(self, name: str = "") -> None:
        self.name = name or (*self.aliases, self.canonical_name)[0]

    def compute(self, tp: Any, fp: Any, tn: Any, fn: Any, count: int) -> Any:
        """Compute the score for each threshold from counts of the same shape."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.name


class Precision(ClassificationMetric):
    """tp / (tp + fp). 1 at the first threshold if it matches nothing.

    Examples:
        >>> Precision().compute(np.array([0.0, 1.0]), np.array([0.0, 1.0]), 0, 0, 2)
        array([1. , 0.5])
    """

    canonical_name = "precision"
    increasing = False

    def compute(self, tp: Any, fp: Any, tn: Any, fn: Any, count: int) -> Any:
        """Compute the score for each threshold."""
        precision = _ratio(tp, tp + fp)
        if len(precision) > 1 and (tp + fp)[0] == 0:
            precision[0] = 1
        return precision


class Recall(ClassificationMetric):
    """tp / (tp + fn).

    Examples:
        >>> Recall().name
        'recall'
    """

    canonical_name = "recall"

    def compute(self, tp: Any, fp: Any, tn: Any, fn: Any, count: int) -> Any:
        """Compute the score for each threshold."""
        return _ratio(tp, tp + fn)


class F1Score(ClassificationMetric):
    """The harmonic mean of precision and recall.

    Examples:
        >>> F1Score().compute(np.array([2.0]), np.array([2.0]), 0, np.array([0.0]), 4).round(3)
        array([0.667])
    """

    canonical_name = "f1_score"
    aliases = ("f1", "f1score")

    def compute(self, tp: Any, fp: Any, tn: Any, fn: Any, count: int) -> Any:
        """Compute the score for each threshold."""
        return _ratio(2 * tp, 2 * tp + fp + fn)


class BinaryAccuracy(ClassificationMetric):
    """tp / count.

    Examples:
        >>> BinaryAccuracy().compute(np.array([1.0]), 0, 0, 0, 4)
        array([0.25])
    """

    canonical_name = "binary_accuracy"

    def compute(self, tp: Any, fp: Any, tn: Any, fn: Any, count: int) -> Any:
        """Compute the score for each threshold."""
        return _ratio(tp, count)


class NegativePredictiveValue(ClassificationMetric):
    """tn / (tn + fn).

    Examples:
        >>> NegativePredictiveValue().name
        'npv'
    """

    canonical_name = "negative_predictive_value"
    aliases = ("npv", "negative_predicitve_value")  # the spelling of the original

    def compute(self, tp: Any, fp: Any, tn: Any, fn: Any, count: int) -> Any:
        """Compute the score for each threshold."""
        return _ratio(tn, tn + fn)


class FalsePositiveRate(ClassificationMetric):
    """fp / (fp + tn). Smaller is better.

    Examples:
        >>> FalsePositiveRate().maximize
        False
    """

    canonical_name = "false_positive_rate"
    aliases = ("fpr",)
    maximize = False

    def compute(self, tp: Any, fp: Any, tn: Any, fn: Any, count: int) -> Any:
        """Compute the score for each threshold."""
        return _ratio(fp, fp + tn)


def _ratio(part: Any, whole: Any) -> np.ndarray:
    """Return `part / whole`, and 0 for an empty whole."""
    part, whole = np.broadcast_arrays(part, whole)
    empty = np.zeros_like(part, dtype=np.result_type(part, np.float16))
    return np.divide(part, whole, out=empty, where=whole != 0)


_CLASSES = (BinaryAccuracy, F1Score, FalsePositiveRate, NegativePredictiveValue, Precision, Recall)
_METRICS = {
    name: functools.partial(metric, name)
    for metric in _CLASSES
    for name in (metric.canonical_name, *metric.aliases)
}


def make_classification_metric(
    metric: ClassificationMetric | str, name: str = ""
) -> ClassificationMetric:
    """Return a metric from an object or a name. `name` replaces its name in results.

    Examples:
        >>> make_classification_metric("f1").canonical_name
        'f1_score'

    Raises:
        ValueError: The name is unknown.
    """
    made = from_name("metric", metric, ClassificationMetric, _METRICS)
    made.name = name or made.name
    return made


__all__ = public_names(__name__)
