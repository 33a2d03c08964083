"""Cached features of a frozen backbone, on which only the head trains."""

from __future__ import annotations

import functools
import hashlib
import pathlib
import shutil
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from experiments.evaluation.embed import (
    IdentifiedEmbedder,
    TableEmbedder,
    embedding_key,
    embeddings_on_disk,
    strategy_of,
)
from experiments.options.errors import UsageError
from experiments.training.encoders import Encoders, encoder_of
from experiments.training.plan import RunPlan
from experiments.training.run_files import QUERY
from keras_dml._backend.cloning import all_layers, freeze
from keras_dml._backend.private import Functional
from keras_dml._backend.steps import compiled
from keras_dml.export.float32 import is_float32
from keras_dml.models import split_at_features
from pipelines import ImageTable, feature_batches, training_batches

FOLDER = "features"
# Distinguishes the seeds of views from the seeds of training steps.
_OF_VIEWS = 0x76696577
# Features are small, so the head computes many rows at once.
_ROWS = 4096


class ImageFeed:
    """The input of a training on augmented images.

    Args:
        run: The run.
        encoders: Models from images to embeddings.
    """

    def __init__(self, run: RunPlan, encoders: Encoders) -> None:
        self._run = run
        self._encoders = encoders
        self._some: ImageTable | None = None  # kept, because an embedder recognizes its tables
        size = run.options.eval_batch_size
        self._embedders = {
            name: TableEmbedder(encoder, run.transform_of(name), size, again=True)
            for name, encoder in encoders.items()
        }
        # Side -> fingerprint of the encoder's weights, and the embeddings by these weights.
        self._last: dict[str, tuple[str, np.ndarray]] = {}

    def batches(
        self,
        start_step: int | Callable[[], int],
        context: tf.distribute.InputContext,
        num_steps: int | None = None,
    ) -> tf.data.Dataset:
        """Return the batches (inputs, class ids) of one input pipeline.

        Args:
            start_step, num_steps: As in `training_batches`.
            context: Context of the pipeline.
        """
        run = self._run
        batches = functools.partial(
            training_batches,
            transform=run.augmentation,
            start_step=start_step,
            num_steps=num_steps,
            input_context=context,
        )
        return run.objective.batches(run.data, run.sampler, batches)

    def embeddings_of(self, rows: np.ndarray, description: str) -> np.ndarray:
        """Embed training images with the current model.

        Args:
            rows: Row numbers, the same in every call.
            description: Text of the progress bar.
        """
        if self._some is None:
            self._some = self._run.data.train.select(rows)
        return self._embedders[QUERY](self._some, description)

    def embeddings(self, side: str, description: str) -> np.ndarray:
        """Embed the images of a side of the data with the current model."""
        encoder = encoder_of(side, self._encoders)
        found = self._embedders[encoder](self._run.data.tables[side], description)
        if side != "training":  # only `embeddings_by` needs them again
            self._last[side] = _fingerprint(self._encoders[encoder]), found
        return found

    def embeddings_by(self, model: keras.Model, encoder: str = QUERY) -> dict[str, np.ndarray]:
        """Return the embeddings by a model of an encoder, by side, if no new function is needed.

        This is so if the model has the weights of the encoder, whose function is traced already.
        The last evaluation has often embedded the images with these weights.
        """
        current, weights = self._encoders[encoder], _fingerprint(model)
        if not is_float32(current) or weights != _fingerprint(current):
            return {}
        return {
            side: self._last[side][1]
            if side in self._last and self._last[side][0] == weights
            else self.embeddings(side, f"embedding, {side}")
            for side in self._run.data.tables
            if side != "training" and encoder_of(side, self._encoders) == encoder
        }


def _fingerprint(model: keras.Model) -> str:
    """Return the SHA-256 of the weights."""
    digest = hashlib.sha256()
    for weights in model.get_weights():
        digest.update(f"{weights.dtype}{weights.shape}".encode())
        digest.update(weights.tobytes())
    return digest.hexdigest()


class FeatureFeed:
    """The input of a training on the cached features of a frozen backbone.

    The name of a file contains a fingerprint of the frozen part, the images, and their transform.
    After a kill, the next process resumes an unfinished file.

    Args:
        run: The run. Files are in `options.cache_dir`, or in the run's open folder until the run is
            finished.
        trunk: Frozen model from images to features.
        head: Trained model from features to embeddings.

    Raises:
        UsageError: The folder cannot be created, or another process writes the same file.
        FloatingPointError: A feature is not finite.
    """

    def __init__(self, run: RunPlan, trunk: keras.Model, head: keras.Model) -> None:
        self._run = run
        self._embed = _of_features(head)
        given = run.options.cache_dir
        self._folder = run.folder.file(FOLDER) if given is None else pathlib.Path(given)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cache_dir cannot be made: {error}") from error
        self._shape = trunk.output.shape[1:]
        self._key = model_fingerprint(trunk)
        began = time.perf_counter()
        self._features = self._computed(trunk)
        rows = sum(map(len, self._features.values()))
        seconds = time.perf_counter() - began
        print(f"features of {rows:,} images in {self._folder}: {seconds:.1f} s", flush=True)

    def batches(
        self,
        start_step: int | Callable[[], int],
        context: tf.distribute.InputContext,
        num_steps: int | None = None,
    ) -> tf.data.Dataset:
        """Return batches as `ImageFeed.batches`, with features as inputs."""
        run = self._run
        views = [self._features[name] for name in _view_names(run.options.cached_views)]
        return feature_batches(
            views,
            run.data.train.labels,
            run.sampler,
            seed=run.options.seed,
            start_step=start_step,
            num_steps=num_steps,
            input_context=context,
        )

    def embeddings_of(self, rows: np.ndarray, description: str) -> np.ndarray:
        """Embed as `ImageFeed.embeddings_of`, with the head.

        Raises:
            FloatingPointError: An embedding is not finite.
        """
        return self._embeddings(self._embed, self._features["training"][rows])

    def embeddings(self, side: str, description: str) -> np.ndarray:
        """Embed as `ImageFeed.embeddings`, with the head.

        Raises:
            FloatingPointError: An embedding is not finite.
        """
        return self._embeddings(self._embed, self._features[side])

    def embeddings_by(self, model: keras.Model, encoder: str = QUERY) -> dict[str, np.ndarray]:
        """Embed all sides as `ImageFeed.embeddings_by`, if the model has the same frozen part.

        Raises:
            FloatingPointError: An embedding is not finite.
        """
        # Files do not store that the layers of a subclassed backbone are frozen.
        freeze(keras.Model(model.input, model.get_layer("features").input))
        trunk, head = split_at_features(model)
        if model_fingerprint(trunk) != self._key:  # in half precision, `model` is float32
            return {}
        embed = _of_features(head)
        sides = [side for side in self._run.data.tables if side in self._features]
        return {side: self._embeddings(embed, self._features[side]) for side in sides}

    def _embeddings(
        self, embed: Callable[[np.ndarray], np.ndarray], features: np.ndarray
    ) -> np.ndarray:
        parts = [
            embed(np.ascontiguousarray(features[first : first + _ROWS]))
            for first in range(0, len(features), _ROWS)
        ]
        embeddings = np.concatenate(parts).astype("float32")
        if not np.isfinite(embeddings).all():
            raise FloatingPointError("the embeddings are not finite")
        return embeddings

    def _computed(self, trunk: keras.Model) -> dict[str, np.ndarray]:
        """Return the features of each table and view, from their files as far as they exist."""
        run, options = self._run, self._run.options
        # Training images without augmentation: for a training without views, and for evaluators.
        sides = {"test", *run.objective.sides, *_view_names(options.cached_views)}
        sides |= {side for each in run.evaluators for side in each.sides(run.data)}
        # The nearest classes follow from images without augmentation.
        sides |= {"training"} if run.refreshed_sampler is not None else set()
        # Maps and tokens become rows of the file.
        with strategy_of(trunk).scope():
            rows = keras.layers.Reshape((-1,), dtype="float32")(trunk.output)
            flat = keras.Model(trunk.input, rows)
        plain = TableEmbedder(flat, run.preprocessing, options.eval_batch_size)
        wanted = [
            (side, table, plain, self._key)
            for side, table in run.data.tables.items()
            if side in sides
        ]
        for view in range(options.cached_views or 0):
            seeds = view_seeds(options.seed, view, len(run.data.train))
            embedder = TableEmbedder(flat, run.augmentation, options.eval_batch_size, seeds)
            key = f"{self._key}; view {view} of seed {options.seed}"
            wanted.append((_view_name(view), run.data.train, embedder, key))
        features = {}
        for name, table, embedder, key in wanted:
            model = IdentifiedEmbedder(embedder, key)
            digest = hashlib.sha256(embedding_key(model, table).encode()).hexdigest()[:20]
            path = self._folder / f"{name.replace(' ', '-')}-{digest}.npy"
            done = embeddings_on_disk(model, table, path, f"features, {name}")
            features[name] = done.array().reshape(-1, *self._shape)
        return features


def remove_own_features(run: RunPlan) -> None:
    """Remove the features in the run's folder."""
    if run.options.cache_dir is None and run.folder.writes:
        shutil.rmtree(run.folder.file(FOLDER), ignore_errors=True)


def _of_features(head: keras.Model) -> Callable[[np.ndarray], np.ndarray]:
    """Return the head as a compiled function from features to embeddings."""

    def embed(features: Any) -> Any:
        return head(features, training=False)

    if head.variables:  # otherwise a trace costs more than the head, and TensorFlow warns of many
        embed = compiled(embed, head.variables, assigns=False)
    return lambda rows: keras.ops.convert_to_numpy(embed(keras.ops.convert_to_tensor(rows)))


def view_seeds(seed: int, view: int, images: int) -> np.ndarray:
    """Return seeds of the augmentation, int64 `[images, 2]`: a function of (seed, view, image)."""
    drawn = np.random.SeedSequence((_OF_VIEWS, seed, view)).generate_state(2 * images, np.uint64)
    return drawn.view(np.int64).reshape(-1, 2)


def model_fingerprint(model: keras.Model) -> str:
    """Return a digest of a model's weights and of its layers' configurations.

    Names are left out, because Keras numbers the layers of a process.
    """
    digest = hashlib.sha256()
    for layer in all_layers(model):
        if isinstance(layer, (Functional, keras.Sequential)):
            continue  # its layers follow
        digest.update(f"{type(layer).__name__} {_without_names(_config(layer))}".encode())
    for variable in model.variables:
        array = variable.numpy()
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _config(layer: keras.layers.Layer) -> Any:
    try:
        return layer.get_config()
    except NotImplementedError:  # a class without a configuration
        return {}


def _without_names(config: Any) -> Any:
    if isinstance(config, dict):
        kept = {key: _without_names(value) for key, value in config.items() if key != "name"}
        return dict(sorted(kept.items(), key=lambda item: str(item[0])))
    if isinstance(config, (list, tuple)):
        return [_without_names(value) for value in config]
    return str(config)


def _view_name(view: int) -> str:
    return f"training view {view}"


def _view_names(views: int | None) -> list[str]:
    """Return the names of the features that the head trains on."""
    return ["training"] if views is None else [_view_name(view) for view in range(views)]
