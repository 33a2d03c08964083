"""The old model of `--compatible_with`: its embeddings, and the scores of searches with both."""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
import shutil
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from experiments.evaluation.embed import (
    IdentifiedEmbedder,
    ServedEmbedder,
    embedding_key,
    embeddings_on_disk,
)
from experiments.evaluation.evaluators import EvaluatedRun, Evaluator, Finished
from experiments.evaluation.measurement import Measurement
from experiments.evaluation.result import Findings
from experiments.evaluation.score_table import label_of
from experiments.options import RunOptions
from experiments.options.errors import UsageError
from experiments.training.run_files import FLAGS_FILE, SERVED, kept_model
from keras_dml import upgrade
from keras_dml._common.errors import ArgumentError
from keras_dml._files.json_files import read_json
from keras_dml.export.load import fingerprint
from keras_dml.models import copy_weights, load_keras_file
from pipelines import ImageTable, feature_batches
from pipelines.samplers import Sampler

FOLDER = "old_embeddings"
# The settings of an index, from `experiments.searching.index_folder`.
_SETTINGS = "settings.json"
_FORM = {"saved_model": str, "fingerprint": str, "map": (dict[str, Any], None)}
# The scores of `cross_scores`.
_MEASURED = {
    "recall@1": Measurement("recall", 0, 1, "cosine"),
    "map@r": Measurement("map@r", 0, None, "cosine"),
}


class OldModel:
    """The SavedModel of a finished run, or of an index, and its embeddings of a run's images.

    The embeddings are computed once. Files are in `cache_dir`, or in the run's folder until the run
    is finished. After a kill, the next process resumes an unfinished file.

    Args:
        options: The options of the run, with `compatible_with`.

    Attributes:
        dimensions: The length of the embeddings.

    Raises:
        UsageError: The folder has no model, or its model cannot be loaded.
    """

    def __init__(self, options: RunOptions) -> None:
        self._path = pathlib.Path(str(options.compatible_with))
        path = _saved_model_of(self._path)
        embedder = ServedEmbedder(path, options.eval_batch_size)
        self.dimensions = embedder.dimensions
        self._model = IdentifiedEmbedder(embedder, fingerprint(path))
        self._options = options
        self._found: dict[str, np.ndarray] = {}

    @property
    def _folder(self) -> pathlib.Path:
        given = self._options.cache_dir
        return self._options.folder / FOLDER if given is None else pathlib.Path(given)

    def start(self, encoder: keras.Model) -> None:
        """Copy the weights of the run's kept model into an encoder.

        Raises:
            UsageError: `compatible_with` is an index, or the encoder has other layers.
            DamagedError: The file of the kept model has changed.
        """
        if not (self._path / SERVED).is_dir():
            raise UsageError(
                "compatible_with must be a run with compatible_start, but got the index "
                f"{self._path}. Set the run whose model built it."
            )
        old = load_keras_file(kept_model(self._path), self._options.trust_code)
        try:
            copy_weights(old, encoder)
        except ArgumentError as error:
            raise UsageError(
                "compatible_start must be unset unless this run has the layers of the old model, "
                f"whose flags are in {self._path / FLAGS_FILE}, but got other layers. {error}"
            ) from error

    def embeddings(self, side: str, table: ImageTable) -> np.ndarray:
        """Return the embeddings of a side of the data, from its file as far as it exists.

        Raises:
            UsageError: An image cannot be embedded, or another process writes the file.
        """
        if side not in self._found:
            self._folder.mkdir(parents=True, exist_ok=True)
            digest = hashlib.sha256(embedding_key(self._model, table).encode()).hexdigest()[:20]
            path = self._folder / f"old-{side}-{digest}.npy"
            done = embeddings_on_disk(self._model, table, path, f"old embeddings, {side}")
            self._found[side] = done.array()
        return self._found[side]

    def beside(
        self,
        batches: tf.data.Dataset,
        table: ImageTable,
        sampler: Sampler,
        start_step: int | Callable[[], int],
        num_steps: int | None,
        context: tf.distribute.InputContext,
    ) -> tf.data.Dataset:
        """Return batches (images, (labels, old embeddings)).

        Args:
            batches: The batches (images, labels) of one input pipeline.
            table: The training images.
            sampler: Function from batch number to row numbers of the training images.
            start_step, num_steps: As in `training_batches`.
            context: The context of the input pipeline.
        """
        rows = self.embeddings("training", table)
        old = feature_batches(
            [rows],
            table.labels,
            sampler,
            start_step=start_step,
            num_steps=num_steps,
            input_context=context,
        )
        return tf.data.Dataset.zip(batches, old).map(
            lambda batch, of_old: (batch[0], (batch[1], of_old[0]))
        )

    def remove(self) -> None:
        """Remove the embeddings in the run's folder."""
        if self._options.cache_dir is None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _saved_model_of(folder: pathlib.Path) -> pathlib.Path:
    """Return the SavedModel of a run or of an index.

    Raises:
        UsageError: The folder has no SavedModel, or the model of the index has changed.
    """
    if (folder / SERVED).is_dir():
        return folder / SERVED
    if not (folder / _SETTINGS).is_file():
        raise UsageError(
            "compatible_with must be the folder of a finished run, or of an index, but got "
            f"{folder}."
        )
    try:
        settings = read_json(folder / _SETTINGS, _FORM)
    except ArgumentError as error:
        raise UsageError(f"compatible_with must be an undamaged index. {error}") from error
    if settings.get("map") is not None:
        raise UsageError(
            f"compatible_with must be an index whose rows one model embedded, but got {folder}, "
            "which has a map. Set the index that was upgraded, or the run of its model."
        )
    path = folder / settings["saved_model"]
    if fingerprint(path) != settings["fingerprint"]:
        raise UsageError(
            f"compatible_with must be an index with the model that built it, but {path} has "
            "changed since. Put the model back, or build the index again."
        )
    return path


class CompatibleScores(Evaluator):
    """The scores of both models' queries in the rows of both, among the test images.

    Args:
        old: The old model.
    """

    def __init__(self, old: OldModel) -> None:
        self._old = old

    def finish(self, run: EvaluatedRun, end: Finished) -> Findings:
        """Return the table of `keras_dml.upgrade.cross_scores`."""
        test = run.data.test
        old, new = self._old.embeddings("test", test), end.embeddings["test"]
        with warnings.catch_warnings():
            # The line of the difference states the same as the warning.
            warnings.simplefilter("ignore", UserWarning)
            table = upgrade.cross_scores(old, new, test.labels)
        return Findings(measurements=_measurements(table), lines=_lines(table))


def _measurements(table: Iterable[upgrade.CrossScore]) -> list[Measurement]:
    """Return the scores of a table with their intervals."""
    return [
        dataclasses.replace(
            _MEASURED[row.score],
            value=row.value,
            part=f"{row.queries} queries in {row.gallery} rows",
            low=row.low,
            high=row.high,
        )
        for row in table
        if row.score in _MEASURED
    ]


def _lines(table: Iterable[upgrade.CrossScore]) -> list[tuple[str, str]]:
    """Return the update gains. Without a gain, return the difference of the models."""
    rows = {(row.gallery, row.queries, row.score): row for row in table}
    lines = []
    for score, place in _MEASURED.items():
        label = label_of(place)
        gain = rows.get(("old", "new", f"gain in {score}"))
        if gain is not None:
            text = f"{gain.value:.2f} ({gain.low:.2f} to {gain.high:.2f})"
        else:
            found = rows["new", "new", f"difference in {score}"]
            points = [f"{100 * value:z.1f}" for value in found[3:]]
            text = (
                "none, because the new model is not better than the old one: the difference is "
                "{} points ({} to {})".format(*points)
            )
        lines.append((f"Update gain in {label}", text))
    return lines
