"""Scores after each epoch."""

import pathlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_dml._common.extras import TensorFlow
from keras_dml.similarity.classification_metrics import (
    ClassificationMetric,
    make_classification_metric,
)
from keras_dml.similarity.matchers import ClassificationMatch
from keras_dml.similarity.retrieval_metrics import RetrievalMetric

__all__ = ["EvalCallback"]

tf = TensorFlow("tb_logdir")


class EvalCallback(keras.callbacks.Callback):
    """A callback that indexes targets after each epoch, looks up queries, and logs scores.

    It leaves an empty, uncalibrated index. `keras_dml.callbacks.RetrievalEvaluation` needs no
    index.

    Examples:
        >>> x, y = np.eye(2)[[0, 0, 1, 1]], np.array([0, 0, 1, 1])
        >>> inputs = keras.Input((2,))
        >>> model = keras_dml.similarity.models.SimilarityModel(
        ...     inputs, keras.layers.Dense(2)(inputs)
        ... )
        >>> model.compile("adam", keras_dml.similarity.losses.TripletLoss())
        >>> callback = EvalCallback(x, y, targets=x, target_labels=y)
        >>> history = model.fit(x, y, epochs=1, verbose=0, callbacks=[callback])
        >>> history.history["binary_accuracy"]
        [1.0]

    Args:
        queries, query_labels: Examples and class ids of queries.
        targets, target_labels: Examples and class ids to index.
        distance: Has no effect, as in the original. The model's distance is used.
        metrics: Scores of matches, for the first of `distance_thresholds`.
        tb_logdir: Folder for TensorBoard, which needs TensorFlow. None writes no events.
        k: Number of neighbors.
        matcher: As in `SimilarityModel.match`.
        distance_thresholds: Thresholds. None: infinity.
        known_classes: Classes seen in training. If set, the scores are separate, with the suffixes
            `_known_classes` and `_unknown_classes`.
        retrieval_metrics: Scores of neighbors.
    """

    def __init__(
        self,
        queries: Any,
        query_labels: Sequence[int],
        targets: Any,
        target_labels: Sequence[int],
        distance: str = "cosine",
        metrics: Sequence[ClassificationMetric | str] = ("binary_accuracy",),
        tb_logdir: str | None = None,
        k: int = 1,
        matcher: ClassificationMatch | str = "match_nearest",
        distance_thresholds: Any = None,
        known_classes: Any = None,
        retrieval_metrics: Sequence[RetrievalMetric] | None = None,
    ) -> None:
        super().__init__()
        labels = np.reshape(query_labels, -1)
        self.targets, self.target_labels = targets, target_labels
        self.metrics = [make_classification_metric(metric) for metric in metrics]
        self.retrieval_metrics = list(retrieval_metrics or ())
        self.k, self.matcher = k, matcher
        self.distance_thresholds = [np.inf] if distance_thresholds is None else distance_thresholds
        if known_classes is None:
            masks = {"": np.ones(len(labels), bool)}
        else:
            known = np.isin(labels, np.reshape(known_classes, -1))
            masks = {"_known_classes": known, "_unknown_classes": ~known}
        self.sets = {
            suffix: (np.asarray(queries)[mask], labels[mask])
            for suffix, mask in masks.items()
            if mask.any()
        }
        self.writer = None
        if tb_logdir:
            self.writer = tf.summary.create_file_writer(str(pathlib.Path(tb_logdir, "index")))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add the scores to the logs."""
        logs = {} if logs is None else logs
        self.model.reset_index()
        self.model.index(self.targets, self.target_labels, verbose=0)
        for suffix, (queries, labels) in self.sets.items():
            for name, value in self._scores(queries, labels).items():
                logs[f"{name}{suffix}"] = value
                if self.writer is not None:
                    with self.writer.as_default():
                        tf.summary.scalar(f"{name}{suffix}", value, step=epoch)
        self.model.reset_index()

    def _scores(self, queries: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        index = self.model._index
        predictions = self.model.predict(queries, verbose=0)
        results = index.evaluate_classification(
            predictions, labels, self.distance_thresholds, self.metrics, self.matcher, self.k, 0
        )
        scores = {metric.name: float(results[metric.name][0]) for metric in self.metrics}
        found = index.evaluate_retrieval(predictions, labels, self.retrieval_metrics, verbose=0)
        return {**scores, **{name: float(value) for name, value in found.items()}}
