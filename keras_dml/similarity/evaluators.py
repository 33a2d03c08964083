"""Scores and calibration from lookups."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from keras_dml._common.errors import ArgumentError
from keras_dml.similarity.classification_metrics import ClassificationMetric
from keras_dml.similarity.matchers import ClassificationMatch, make_classification_matcher
from keras_dml.similarity.retrieval_metrics import RetrievalMetric
from keras_dml.similarity.types import CalibrationResults, Lookup
from keras_dml.similarity.utils import unpack_lookup_distances, unpack_lookup_labels

__all__ = ["Evaluator", "MemoryEvaluator"]

Lookups: TypeAlias = Sequence[Sequence[Lookup]]


def neighbors(lookups: Lookups, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels and the distances of neighbors, `[q, k]` each.

    Distances have 8 digits, as in the original.
    """
    return unpack_lookup_labels(lookups, dtype), unpack_lookup_distances(lookups, "float32", 8)


class Evaluator:
    """The interface of evaluators: the methods of `MemoryEvaluator`.

    Examples:
        >>> issubclass(MemoryEvaluator, Evaluator)
        True
    """


class MemoryEvaluator(Evaluator):
    """Scores and calibration from lookups in memory.

    Examples:
        >>> from keras_dml.similarity.retrieval_metrics import RecallAtK
        >>> lookups = [[Lookup(1, 0.1, label=3)], [Lookup(1, 0.2, label=3)]]
        >>> MemoryEvaluator().evaluate_retrieval([3, 4], lookups, [RecallAtK(k=1)])
        {'recall@1': np.float32(0.5)}
    """

    def evaluate_retrieval(
        self,
        target_labels: Any,
        lookups: Lookups,
        retrieval_metrics: Sequence[RetrievalMetric],
    ) -> dict[str, np.float32]:
        """Return each metric's value by its name.

        Raises:
            ValueError: A metric needs more neighbors than the lookups have.
        """
        truth = np.reshape(target_labels, -1)
        labels, distances = neighbors(lookups, truth.dtype)
        hits = labels == truth[:, None]
        return {
            metric.name: metric.compute(
                query_labels=truth, match_mask=hits, lookup_labels=labels,
                lookup_distances=distances,
            )
            for metric in retrieval_metrics
        }  # fmt: skip

    def evaluate_classification(
        self,
        query_labels: Any,
        lookup_labels: Any,
        lookup_distances: Any,
        distance_thresholds: Any,
        metrics: Sequence[ClassificationMetric],
        matcher: ClassificationMatch | str,
    ) -> dict[str, np.ndarray]:
        """Return `distance` and each metric as arrays over the thresholds."""
        matcher = make_classification_matcher(matcher)
        matcher.compile(distance_thresholds)
        matcher.compute_count(query_labels, lookup_labels, lookup_distances)
        counts = {name: getattr(matcher, name) for name in ("tp", "fp", "tn", "fn", "count")}
        results = {"distance": matcher.distance_thresholds}
        return {**results, **{metric.name: metric.compute(**counts) for metric in metrics}}

    def calibrate(
        self,
        target_labels: Any,
        lookups: Lookups,
        thresholds_targets: Mapping[str, float],
        calibration_metric: ClassificationMetric,
        matcher: ClassificationMatch | str,
        extra_metrics: Sequence[ClassificationMetric] = (),
    ) -> CalibrationResults:
        """Choose a distance threshold for the best score, and for each target.

        The thresholds are all distinct lookup distances. `"optimal"` is the last best threshold. A
        target is the first threshold with at least that score, or the last one if the score falls
        with the threshold. A target that no threshold reaches is missing in the result.

        Raises:
            ValueError: There are no lookups.
        """
        if not any(map(len, lookups)):
            raise ArgumentError("lookups must not be empty. Index examples first.")
        truth = np.reshape(target_labels, -1)
        labels, distances = neighbors(lookups, truth.dtype)
        metrics = [*extra_metrics, calibration_metric]
        results = self.evaluate_classification(
            truth, labels, distances, np.unique(distances), metrics, matcher
        )
        values = results[calibration_metric.name]
        best = values.max() if calibration_metric.maximize else values.min()
        places = {"optimal": np.flatnonzero(values == best)[-1]}
        for name, target in thresholds_targets.items():
            reached = np.flatnonzero(values >= target)
            if len(reached):
                places[name] = reached[0 if calibration_metric.increasing else -1]
        thresholds = {"value": values, **results}
        cutpoints: dict[str, dict[str, float | str]] = {
            name: {"name": name, **{key: array[place].item() for key, array in thresholds.items()}}
            for name, place in places.items()
        }
        return CalibrationResults(cutpoints, thresholds)
