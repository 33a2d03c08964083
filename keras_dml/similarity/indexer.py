"""The index of a model: a search, a store, and a calibration."""

import json
import os
import pathlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from keras_dml._common.errors import argument_error
from keras_dml._files.atomic import read_folder, replacing_folder
from keras_dml._files.json_files import read_json
from keras_dml.similarity import classification_metrics, distances, evaluators, stores
from keras_dml.similarity._names import from_name
from keras_dml.similarity.distances import Distance
from keras_dml.similarity.matchers import ClassificationMatch, make_classification_matcher
from keras_dml.similarity.retrieval_metrics import RetrievalMetric
from keras_dml.similarity.search import Search, make_search
from keras_dml.similarity.types import CalibrationResults, Lookup, PandasDataFrame

__all__ = ["Indexer"]

_METADATA = "index_metadata.json"
_SETTINGS = ("embedding_size", "embedding_output", "stat_buffer_size")
_RESULTS = ("is_calibrated", "cutpoints", "calibration_thresholds")
_FORM = {
    "embedding_size": int | None,
    "embedding_output": int | None,
    "stat_buffer_size": int | None,
    "is_calibrated": bool,
    "calibration_metric_config": ({"canonical_name": str, "name": str}, None),
    "cutpoints": (dict[str, dict[str, Any]], None),
    "calibration_thresholds": dict[str, list[float]] | None,
    "search_config": (dict[str, Any], None),
}

make_metric = classification_metrics.make_classification_metric
Matcher: TypeAlias = ClassificationMatch | str
Metrics: TypeAlias = Sequence[classification_metrics.ClassificationMetric | str]


class Indexer:
    """Embeddings with labels and data, searched by embeddings. `model._index` is an `Indexer`.

    `predictions` are outputs of a model: embeddings `[n, d]`, or a list of outputs that contains
    them at `embedding_output`.

    Examples:
        >>> index = Indexer(embedding_size=2)
        >>> index.batch_add(np.eye(2), labels=[3, 4], verbose=0)
        >>> index.single_lookup(np.array([[1.0, 0.0]]), k=1)[0].label
        3

    Args:
        embedding_size: Length of an embedding.
        distance: A distance or its name.
        search: A `Search`, `"linear"`, or the name of an approximate search, which searches
            exactly.
        kv_store: A `Store`, or `"memory"`.
        evaluator: An `Evaluator`, or `"memory"`.
        embedding_output: Which output of the model has the embeddings. None for a single output.
        stat_buffer_size: Has no effect.

    Raises:
        ValueError: A name is unknown, or the distance is a similarity.
    """

    def __init__(
        self,
        embedding_size: int | None,
        distance: Distance | str = "cosine",
        search: Search | str = "linear",
        kv_store: stores.Store | str = "memory",
        evaluator: evaluators.Evaluator | str = "memory",
        embedding_output: int | None = None,
        stat_buffer_size: int = 1000,
    ) -> None:
        self.embedding_size, self.embedding_output = embedding_size, embedding_output
        self.distance, self.search_type = distances.get(distance), search
        self.kv_store_type, self.evaluator_type = kv_store, evaluator
        self.stat_buffer_size = stat_buffer_size
        self.search: Any = make_search(search, self.distance, embedding_size or 0)
        known_stores = {"memory": stores.MemoryStore}
        self.kv_store = from_name("kv_store", kv_store, stores.Store, known_stores)
        known_evaluators = {"memory": evaluators.MemoryEvaluator}
        self.evaluator = from_name("evaluator", evaluator, evaluators.Evaluator, known_evaluators)
        self._reset_results()

    def _reset_results(self) -> None:
        self._num_lookups = 0
        self.is_calibrated = False
        self.calibration_metric = make_metric("f1")
        self.cutpoints: Mapping[str, Mapping[str, float | str]] = {}
        self.calibration_thresholds: Mapping[str, np.ndarray] = {}

    def reset(self) -> None:
        """Remove all examples and the calibration."""
        self.search.reset()
        self.kv_store.reset()
        self._reset_results()

    def _embeddings(self, predictions: Any) -> np.ndarray:
        output = self.embedding_output
        if output is not None:
            outputs = list(predictions.values()) if isinstance(predictions, dict) else predictions
            predictions = outputs[output]
        return np.asarray(predictions)

    def add(
        self, prediction: Any, label: int | None = None, data: Any = None, **kwargs: Any
    ) -> None:
        """Add one example from a prediction of one row."""
        labels, values = (None if one is None else [one] for one in (label, data))
        self.batch_add(prediction, labels, values, **kwargs)

    def batch_add(
        self,
        predictions: Any,
        labels: Sequence[int] | None = None,
        data: Sequence[Any] | None = None,
        build: bool = True,
        verbose: int = 1,
    ) -> None:
        """Add examples."""
        embeddings = self._embeddings(predictions)
        idxs = self.kv_store.batch_add(embeddings, labels, data)
        self.search.batch_add(embeddings, idxs, build=build, verbose=verbose)

    def single_lookup(self, prediction: Any, k: int = 5) -> list[Lookup]:
        """Return the neighbors of one query."""
        return self.batch_lookup(prediction, k, verbose=0)[0]

    def batch_lookup(self, predictions: Any, k: int = 5, verbose: int = 1) -> list[list[Lookup]]:
        """Return the neighbors of each query, nearest first, at most k."""
        embeddings = self._embeddings(predictions)
        lookups = []
        for idxs, apart in zip(*self.search.batch_lookup(embeddings, k=k)):
            records = zip(apart, *self.kv_store.batch_get(idxs))
            lookups.append([
                Lookup(rank, float(distance), label, embedding, data)
                for rank, (distance, embedding, label, data) in enumerate(records, 1)
            ])  # fmt: skip
        self._num_lookups += len(lookups)
        return lookups

    def evaluate_retrieval(
        self,
        predictions: Any,
        target_labels: Any,
        retrieval_metrics: Sequence[RetrievalMetric],
        verbose: int = 1,
    ) -> dict[str, np.float32]:
        """Return each metric's value by its name, from `max(k) + 1` neighbors.

        Raises:
            ValueError: A metric is not a `RetrievalMetric`.
        """
        for metric in retrieval_metrics:
            if not isinstance(metric, RetrievalMetric):
                raise argument_error("retrieval_metrics", "RetrievalMetric objects", metric)
        k = max((metric.k for metric in retrieval_metrics), default=1) + 1
        lookups = self.batch_lookup(predictions, k)
        return self.evaluator.evaluate_retrieval(
            target_labels=target_labels, lookups=lookups, retrieval_metrics=retrieval_metrics
        )

    def evaluate_classification(
        self,
        predictions: Any,
        target_labels: Sequence[int],
        distance_thresholds: Any,
        metrics: Metrics = ("f1",),
        matcher: Matcher = "match_nearest",
        k: int = 1,
        verbose: int = 1,
    ) -> dict[str, np.ndarray]:
        """Return `distance` and each metric as arrays over the thresholds."""
        truth = np.reshape(target_labels, -1)
        nearest = evaluators.neighbors(self.batch_lookup(predictions, k), truth.dtype)
        made = [make_metric(metric) for metric in metrics]
        score = self.evaluator.evaluate_classification
        return score(truth, *nearest, distance_thresholds, made, matcher)

    def calibrate(
        self,
        predictions: Any,
        target_labels: Sequence[int],
        thresholds_targets: Mapping[str, float] | None = None,
        calibration_metric: classification_metrics.ClassificationMetric | str = "f1",
        k: int = 1,
        matcher: Matcher = "match_nearest",
        extra_metrics: Metrics = ("precision", "recall"),
        rounding: int = 2,
        verbose: int = 1,
    ) -> CalibrationResults:
        """Choose distance thresholds, and store them. `rounding` has no effect."""
        metric = make_metric(calibration_metric)
        results = self.evaluator.calibrate(
            target_labels=target_labels,
            lookups=self.batch_lookup(predictions, k),
            thresholds_targets=thresholds_targets or {},
            calibration_metric=metric,
            matcher=matcher,
            extra_metrics=[make_metric(one) for one in extra_metrics],
        )
        self.is_calibrated, self.calibration_metric = True, metric
        self.cutpoints, self.calibration_thresholds = results.cutpoints, results.thresholds
        if verbose:
            print_table([dict(one) for one in results.cutpoints.values()])
        return results

    def match(
        self,
        predictions: Any,
        no_match_label: int = -1,
        k: int = 1,
        matcher: Matcher = "match_nearest",
        verbose: int = 1,
    ) -> dict[str, list[int]]:
        """Return the label of each query for each cutpoint. `no_match_label`: no near neighbor."""
        nearest = evaluators.neighbors(self.batch_lookup(predictions, k), "int32")
        labels, apart = make_classification_matcher(matcher).derive_match(*nearest)
        return {
            name: np.where(apart <= cutpoint["distance"], labels, no_match_label).tolist()
            for name, cutpoint in self.cutpoints.items()
        }

    def size(self) -> int:
        """Return the number of examples."""
        return self.kv_store.size()

    def stats(self) -> dict[str, Any]:
        """Return the number of examples and the number of lookups."""
        return {"size": self.size(), "num_lookups": self._num_lookups}

    def print_stats(self) -> None:
        """Print the settings and the statistics."""
        names = ("distance", "kv_store_type", "search_type", "evaluator_type", "is_calibrated")
        print_table([{name: getattr(self, name) for name in names}, self.stats()])

    def to_data_frame(self, num_items: int = 0) -> PandasDataFrame:
        """Return the first examples as a table. 0 returns all of them. Needs pandas."""
        return self.kv_store.to_data_frame(num_items)

    def save(
        self, path: str | os.PathLike[str], compression: bool = True, overwrite: bool = True
    ) -> None:
        """Write the index and its calibration to a folder, which is replaced as a whole.

        Raises:
            ValueError: The folder exists, and `overwrite` is False or it is not an index.
        """
        target = pathlib.Path(path)
        if target.exists() and not overwrite:
            raise argument_error("path", "new with overwrite=False", str(path))
        ours = type(self.distance).__module__ == distances.__name__
        metric = self.calibration_metric
        metadata = {
            "distance": self.distance.name if ours else distances.serialize(self.distance),
            "calibration_metric_config": {
                "name": metric.name,
                "canonical_name": metric.canonical_name,
            },
            **{name: getattr(self, name) for name in (*_SETTINGS, *_RESULTS)},
        }
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing_folder(target, _METADATA, "an index") as folder:
            folder.mkdir()
            self.kv_store.save(folder, compression=compression)
            text = json.dumps(metadata, default=np.ndarray.tolist)
            (folder / _METADATA).write_text(text, "utf-8")

    @staticmethod
    def load(path: str | os.PathLike[str], verbose: int = 1) -> "Indexer":
        """Read an index of this package, or of TensorFlow Similarity 0.17 or 0.18.

        Raises:
            ValueError: The folder is not an index.
        """
        return read_folder(path, _load)


def _load(folder: pathlib.Path) -> Indexer:
    if not (folder / _METADATA).is_file():
        raise argument_error("path", f"a folder with {_METADATA}", str(folder))
    saved = read_json(folder / _METADATA, _FORM)
    settings = {name: saved[name] for name in ("distance", *_SETTINGS) if name in saved}
    index = Indexer(**settings)
    in_018 = folder / "store"
    index.kv_store.load(in_018 if (in_018 / "index.npz").is_file() else folder)
    if index.size():
        embeddings = np.array(index.kv_store.embeddings)
        index.search.batch_add(embeddings, list(range(index.size())))
    if saved["is_calibrated"]:
        metric = saved["calibration_metric_config"]
        index.calibration_metric = make_metric(metric["canonical_name"], metric["name"])
        index.is_calibrated, index.cutpoints = True, saved["cutpoints"]
        index.calibration_thresholds = {
            name: np.array(values, "float32")
            for name, values in saved["calibration_thresholds"].items()
        }
        nmslib = (saved.get("search_config") or {}).get("canonical_name") == "NMSLibSearch"
        if nmslib and index.distance.name == "euclidean":
            warnings.warn("The thresholds are square roots of the saved thresholds.", stacklevel=4)
            tables = [*index.cutpoints.values(), index.calibration_thresholds]
            for table in tables:
                table["distance"] = np.sqrt(table["distance"])  # type: ignore[index]
    return index


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows with the same keys, one line per row."""
    for row in rows:
        cells = ((key, value[0] if np.ndim(value) else value) for key, value in row.items())
        print(" | ".join(f"{key}: {value:.6g}" if isinstance(value, (float, np.floating))
                         else f"{key}: {value}" for key, value in cells))  # fmt: skip
