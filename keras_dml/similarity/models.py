"""A Keras model with an index."""

import functools
import os
import pathlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self

import keras
import numpy as np

from keras_dml._backend import private
from keras_dml._backend.cloning import of_any_backend
from keras_dml._common.errors import ArgumentError, argument_error
from keras_dml._common.types import Config
from keras_dml._files.atomic import replacing_folder
from keras_dml._files.copies import copy_files, names_of_files
from keras_dml.similarity import distances
from keras_dml.similarity.indexer import Indexer, Matcher, Metrics, print_table
from keras_dml.similarity.losses import XBM
from keras_dml.similarity.retrieval_metrics import RetrievalMetric
from keras_dml.similarity.types import CalibrationResults, Lookup, PandasDataFrame

__all__ = ["SimilarityModel"]


@keras.saving.register_keras_serializable("Similarity")
class SimilarityModel(keras.Model):
    """A Keras model with an index of embeddings: `SimilarityModel(inputs, outputs)`.

    `compile` creates an empty index. A subclass can define `call`, as with any Keras model.

    The folder of a saved model is a Keras model, not a TensorFlow SavedModel. Keras 3 cannot load
    models of TensorFlow Similarity. To move one, call `save_weights("model.weights.h5")` in the old
    environment, build the same layers here, and call `load_weights`. `load_index` reads old
    indexes.

    Examples:
        >>> inputs = keras.Input((2,))
        >>> model = SimilarityModel(inputs, keras.layers.UnitNormalization()(inputs))
        >>> model.compile("adam")
        >>> model.index(np.array([[1.0, 0.0], [0.0, 2.0]]), [3, 4], verbose=0)
        >>> [(one.rank, one.label) for one in model.single_lookup(np.array([0.1, 1.0]), k=2)]
        [(1, 4), (2, 3)]
    """

    _ix: Indexer | None = None
    _settings: Mapping[str, Any] = {}

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return an instance of a functional class if inputs and outputs are passed."""
        for one in keras.tree.flatten([args, kwargs]):
            if type(one).__module__.startswith("tf_keras"):
                raise ArgumentError(
                    "inputs and outputs must come from layers of keras, not of tf_keras. Unset the "
                    "environment variable TF_USE_LEGACY_KERAS, and import keras."
                )
        functional = len(args) > 1 or "outputs" in kwargs
        if functional and not issubclass(cls, private.Functional):
            kind: Any = cls  # mypy does not accept the class as hashable
            cls = _functional(kind)
        return super().__new__(cls)

    # Keras loads a functional model into a class whose constructor has exactly these arguments.
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

    @classmethod
    def from_config(cls, config: Config, custom_objects: Mapping[str, Any] | None = None) -> Self:
        """Create a model from its configuration.

        Raises:
            ValueError: The configuration has no layers, as in files of TensorFlow Similarity.
        """
        if cls is SimilarityModel and "layers" not in config:
            raise ArgumentError(
                "The file has no layers, as files of TensorFlow Similarity. Call save_weights("
                "'model.weights.h5') in the old environment, build the same layers, and call "
                "load_weights()."
            )
        return super().from_config(config, custom_objects)

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        metrics: Any = None,
        *,
        distance: distances.Distance | str = "auto",
        **kwargs: Any,
    ) -> None:
        """Compile as in `keras.Model.compile`, and create an empty index.

        Args:
            optimizer, loss, metrics: As in Keras.
            distance: A distance or its name. `"auto"`: the distance of the loss, or of the first
                loss in a list, and cosine without a loss.
            kwargs: `embedding_output`, `kv_store`, `search`, `evaluator`, and `stat_buffer_size` as
                in `create_index`. Others as in Keras.

        Raises:
            ValueError: `distance="auto"`, and the loss has no distance.
        """
        if isinstance(distance, str) and distance == "auto":
            first = loss[0] if isinstance(loss, (list, tuple)) and loss else loss
            distance = "cosine" if first is None else getattr(first, "distance", None)  # type: ignore[assignment]
            if distance is None:
                wanted = "set if the first loss is not a loss of keras_dml.similarity.losses"
                raise argument_error("distance", wanted, "auto")
        options = {name: kwargs.pop(name) for name in _INDEX_OPTIONS if name in kwargs}
        self.create_index(distance, **options)
        # Keras would record "auto" as this backend resolves it.
        jit_compile = kwargs.get("jit_compile", "auto")
        self._settings = {
            "distance": self._index.distance,
            "jit_compile": jit_compile,
            **options,
        }
        super().compile(optimizer=optimizer, loss=loss, metrics=metrics, **kwargs)
        for one, output in zip(self._memories(loss), self._outputs_if_known()):
            if one is not None:
                one.is_owned = True
                one.build(output.shape[1])

    @staticmethod
    def _memories(loss: Any) -> list[XBM | None]:
        """Return the loss of each output if it is an `XBM`."""
        return [one if isinstance(one, XBM) else None for one in keras.tree.flatten(loss)]

    @property
    def metrics_variables(self) -> list[keras.Variable]:
        """The variables of the metrics, and the memories of `XBM`, which the steps of JAX need."""
        memories = self._memories(getattr(self, "loss", None))
        return [*super().metrics_variables, *(v for one in memories if one for v in one.variables)]

    def get_compile_config(self) -> Config:
        """Return the arguments of `compile`. A custom search, store, or evaluator is left out."""
        plain = (int, str, distances.Distance)
        kept = {name: value for name, value in self._settings.items() if isinstance(value, plain)}
        settings = keras.saving.serialize_keras_object(kept)
        return of_any_backend({**(super().get_compile_config() or {}), **settings})

    def compile_from_config(self, config: Config) -> None:
        """Compile with the arguments from `get_compile_config`."""
        self.compile(**keras.saving.deserialize_keras_object(of_any_backend(config)))
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    @property
    def _index(self) -> Indexer:
        if self._ix is None:
            raise ArgumentError("The model has no index. Call compile() or create_index() first.")
        return self._ix

    def _outputs_if_known(self) -> list[Any]:
        """Return the outputs of a functional model, and nothing of a subclass with `call`."""
        return list(self.outputs) if isinstance(self, private.Functional) else []

    def create_index(self, distance: distances.Distance | str = "cosine", **options: Any) -> None:
        """Replace the index by an empty index.

        Args:
            distance: A distance or its name.
            options: `search`, `kv_store`, `evaluator`, and `stat_buffer_size` as in `Indexer`.
                `embedding_output`: which output has the embeddings. None: output 0 if there are
                several.

        Raises:
            ValueError: A name is unknown, or the output does not exist.
        """
        outputs, output = self._outputs_if_known(), options.get("embedding_output")
        if output is None and len(outputs) > 1:
            output = 0
        if output is not None and outputs and output >= len(outputs):
            raise argument_error("embedding_output", f"below {len(outputs)}", output)
        size = outputs[output or 0].shape[1] if outputs else None
        self._ix = Indexer(size, distance, **{**options, "embedding_output": output})

    def _predict(self, x: Any, verbose: int = 0) -> Any:
        return self.predict(x, verbose="auto" if verbose else 0)

    def index(
        self, x: Any, y: Any = None, data: Any = None, build: bool = True, verbose: int = 1
    ) -> None:
        """Embed examples, and add them to the index with their labels and data.

        Args:
            x: Examples.
            y: Class ids, or None.
            data: One value per example that lookups return, for example the image, or None.
            build: Has no effect.
            verbose: Whether to show the progress.
        """
        self._index.batch_add(self._predict(x, verbose), y, data)

    def index_single(self, x: Any, y: int | None = None, data: Any = None, **kwargs: Any) -> None:
        """Embed one example without a batch axis, and add it to the index."""
        self._index.add(self._predict(_batch_of_one(x)), y, data)

    def lookup(self, x: Any, k: int = 5, verbose: int = 1) -> list[list[Lookup]]:
        """Return the neighbors of each example, nearest first: k, or fewer in a small index."""
        return self._index.batch_lookup(self._predict(x, verbose), k, verbose)

    def single_lookup(self, x: Any, k: int = 5) -> list[Lookup]:
        """Return the neighbors of one example without a batch axis."""
        return self._index.single_lookup(self._predict(_batch_of_one(x)), k)

    def calibrate(
        self,
        x: Any,
        y: Any,
        thresholds_targets: Mapping[str, float] | None = None,
        k: int = 1,
        *,
        verbose: int = 1,
        **kwargs: Any,
    ) -> CalibrationResults:
        """Choose distance thresholds for `match` from examples and their labels.

        An example that is also in the index finds itself at distance 0, so calibrate with others.

        Args:
            x, y: Examples and their class ids.
            thresholds_targets: Name to score. Adds a cutpoint that reaches the score.
            k: Number of neighbors.
            kwargs: `calibration_metric`, `matcher`, `extra_metrics`, and `rounding` as in
                `Indexer.calibrate`.
            verbose: Whether to print the cutpoints.
        """
        predictions = self._predict(x, verbose)
        return self._index.calibrate(
            predictions, y, thresholds_targets, k=k, verbose=verbose, **kwargs
        )

    def _calibrated(self) -> Indexer:
        if not self._index.is_calibrated:
            raise ArgumentError("The index is not calibrated. Call calibrate() first.")
        return self._index

    def match(
        self,
        x: Any,
        cutpoint: str = "optimal",
        no_match_label: int = -1,
        k: int = 1,
        matcher: Matcher = "match_nearest",
        verbose: int = 0,
    ) -> Any:
        """Return the label of each example, or `no_match_label` beyond the threshold.

        With `cutpoint="all"`, returns a dictionary from cutpoints to lists.

        Raises:
            ValueError: The index is not calibrated, or the cutpoint is unknown.
        """
        index = self._calibrated()
        if cutpoint != "all" and cutpoint not in index.cutpoints:
            raise argument_error("cutpoint", f"one of {', '.join(index.cutpoints)}, all", cutpoint)
        found = index.match(self._predict(x, verbose), no_match_label, k, matcher, verbose)
        return found if cutpoint == "all" else found[cutpoint]

    def evaluate_retrieval(
        self, x: Any, y: Any, retrieval_metrics: Sequence[RetrievalMetric], verbose: int = 1
    ) -> dict[str, np.float32]:
        """Return each metric's value by its name.

        Raises:
            IndexError: The index is empty.
        """
        if not self.index_size():
            raise IndexError("The index is empty. Call index() first.")
        results = self._index.evaluate_retrieval(
            self._predict(x, verbose), y, retrieval_metrics, verbose
        )
        if verbose:
            print_table([results])
        return results

    def evaluate_classification(
        self,
        x: Any,
        y: Any,
        k: int = 1,
        extra_metrics: Metrics = ("precision", "recall"),
        matcher: Matcher = "match_nearest",
        verbose: int = 1,
    ) -> dict[str, dict[str, Any]]:
        """Return the scores of `match` for each cutpoint, as arrays of length 1.

        Raises:
            ValueError: The index is not calibrated.
        """
        index = self._calibrated()
        predictions = self._predict(x, verbose)
        metrics = [*extra_metrics, index.calibration_metric]
        results: dict[str, dict[str, Any]] = {}
        for name, cutpoint in index.cutpoints.items():
            scores = index.evaluate_classification(
                predictions, y, [cutpoint["distance"]], metrics, matcher, k, verbose
            )
            results[name] = {**scores, "name": name}
        if verbose:
            print_table(list(results.values()))
        return results

    def reset_index(self) -> None:
        """Remove all examples and the calibration from the index."""
        self._index.reset()

    def index_size(self) -> int:
        """Return the number of examples in the index."""
        return self._index.size()

    def index_summary(self) -> None:
        """Print the settings and the statistics of the index."""
        self._index.print_stats()

    def to_data_frame(self, num_items: int = 0) -> PandasDataFrame:
        """Return the first examples of the index as a table. 0 returns all. Needs pandas."""
        return self._index.to_data_frame(num_items)

    def save_index(
        self, filepath: str | os.PathLike[str], compression: bool = True, overwrite: bool = True
    ) -> None:
        """Write the index to `filepath/index`, or to `FILE.index` for a file such as FILE.keras."""
        self._index.save(_index_folder(filepath), compression, overwrite)

    def load_index(self, filepath: str | os.PathLike[str]) -> None:
        """Replace the index by the index that `save`, `save_index`, or the original wrote."""
        self._ix = Indexer.load(_index_folder(filepath))

    def save(
        self,
        filepath: str | os.PathLike[str],
        save_index: bool = True,
        compression: bool = True,
        overwrite: bool = True,
        **kwargs: Any,
    ) -> None:
        """Save the model and the index to a folder, or to a `.keras` file and `FILE.index`.

        Args:
            filepath: A folder, which is replaced as a whole, or a file.
            save_index: Whether to save the index.
            compression: Whether to compress the index.
            overwrite: Whether to replace an existing model.
            kwargs: As in `keras.Model.save`. `include_optimizer`, `save_format`, and `save_traces`
                have no effect, and warn. `signatures` and `options` must be None: use
                `model.export` for a SavedModel.

        Raises:
            ValueError: `signatures` or `options` is set, or the folder exists and is not a model,
                or `overwrite` is False.
        """
        for name in ("signatures", "options"):
            if (value := kwargs.pop(name, None)) is not None:
                advice = "Call model.export() to write a TensorFlow SavedModel."
                raise argument_error(name, "None", value, advice=advice)
        for name in ("include_optimizer", "save_format", "save_traces"):
            if kwargs.pop(name, None) is not None:
                warnings.warn(f"{name} has no effect.", stacklevel=2)
        target = pathlib.Path(filepath)
        if target.exists() and not overwrite:
            raise argument_error("filepath", "new with overwrite=False", str(filepath))
        saves_index = save_index and self._ix is not None
        if target.suffix in (".keras", ".h5", ".hdf5"):
            super().save(filepath, overwrite=overwrite, **kwargs)
            if saves_index:
                self.save_index(filepath, compression)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing_folder(target, "config.json", "a saved model") as folder:
            keras.saving.save_model(self, folder, zipped=False)
            if saves_index:
                self._index.save(folder / "index", compression)
            elif (target / "index").is_dir():
                index = target / "index"
                copy_files(index, names_of_files(index), folder / "index")


_INDEX_OPTIONS = ("search", "kv_store", "evaluator", "embedding_output", "stat_buffer_size")


@functools.cache
def _functional(cls: type[SimilarityModel]) -> type[SimilarityModel]:
    """Return a class for models of inputs and outputs, which Keras saves as `cls`.

    Without a separate class, Keras would change the bases of `cls`, and subclasses that define
    `call` would fail.
    """
    made = type(cls.__name__, (cls, private.Functional), {"__module__": cls.__module__})
    package, _, name = keras.saving.get_registered_name(cls).rpartition(">")
    if package:
        # The class that is registered last is the class that Keras loads.
        for each in (made, cls):
            keras.saving.register_keras_serializable(package, name)(each)
    return made


def _batch_of_one(x: Any) -> Any:
    return keras.tree.map_structure(lambda value: np.asarray(value)[None], x)


def _index_folder(filepath: str | os.PathLike[str]) -> pathlib.Path:
    path = pathlib.Path(filepath)
    if path.suffix in (".keras", ".h5", ".hdf5"):
        return path.with_name(f"{path.name}.index")
    return path / "index"
