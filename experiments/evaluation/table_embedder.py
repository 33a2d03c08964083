"""Embeddings of a table of images."""

import hashlib
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from experiments.evaluation.embedding_file import EmbeddingFile
from experiments.options.progress import progress_bar
from keras_dml._backend.replicas import gather_candidates
from keras_dml._backend.steps import compiled
from keras_dml.models import TextTransform
from pipelines import EvaluationTransform, ImageTable, TrainTransform, evaluation_batches
from pipelines.max_pixels import MOST_PIXELS

# Part of the key of embeddings on disk. Earlier versions did not turn photos upright.
_READ_AS = "turned upright"

Transform: TypeAlias = EvaluationTransform | TrainTransform | TextTransform


class TableEmbedder:
    """Embeds tables of images as float32 `[n, d]`, in row order.

    The replicas of the model's strategy share the images. Every worker gets all embeddings.

    Args:
        model: Embedding model.
        transform: Evaluation transform, or with `seeds` a training transform. Or the transform of
            texts.
        batch_size: Number of images in a batch of each replica.
        seeds: Seeds of the augmentation of each image, int64 `[n, 2]`, for a single table.
        again: Whether the same tables are embedded repeatedly. Then the pipeline of each table is
            stored, because a new one takes seconds, and memory that TensorFlow does not free.
    """

    def __init__(
        self,
        model: keras.Model,
        transform: Transform,
        batch_size: int,
        seeds: np.ndarray | None = None,
        again: bool = False,
    ) -> None:
        self.model, self.transform = model, transform
        self.batch_size = batch_size
        self.seeds = seeds
        self.strategy = strategy_of(model)
        # Built once, because a new function is traced again at each evaluation.
        self._embed = _embedding_function(model, self.strategy, transform)
        # Several workers start each round together.
        several = isinstance(self.strategy, tf.distribute.MultiWorkerMirroredStrategy)
        self._again = again and not several
        # The table is stored too, so that no other table gets its id.
        self._begun: dict[int, tuple[ImageTable, Iterator[tf.Tensor]]] = {}

    def __call__(self, table: ImageTable, description: str = "embedding") -> np.ndarray:
        """Return the table's embeddings, with a progress bar.

        Raises:
            FloatingPointError: An embedding is not finite.
        """
        embeddings = np.concatenate(list(self.batches(table, description)))
        if not np.isfinite(embeddings).all():
            raise FloatingPointError("the embeddings are no longer finite")
        return embeddings

    def batches(
        self, table: ImageTable, description: str = "embedding", first_row: int = 0
    ) -> Iterator[np.ndarray]:
        """Yield the embeddings of the rows from `first_row` on, `[b, d]`, with a progress bar."""
        left = len(table) - first_row
        if not left:
            return
        # Removed until the round is over, so that an interrupted round starts again.
        _, images = self._begun.pop(id(table), (table, None)) if not first_row else (table, None)
        images = images or self._images(table, first_row)
        with progress_bar(description, total=len(table), initial=first_row) as bar:
            while left:
                rows = self._embed(next(images))[:left]  # without the repetitions of the last row
                left -= len(rows)
                bar.update(len(rows))
                yield rows.astype("float32")
        if self._again and not first_row:
            self._begun[id(table)] = table, images

    def _images(self, table: ImageTable, first_row: int) -> Iterator[tf.Tensor]:
        """Return batches of the rows from `first_row` on, in endless rounds if they are stored."""
        rest = table.select(np.arange(first_row, len(table))) if first_row else table
        seeds = None if self.seeds is None else self.seeds[first_row:]

        def batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
            once = evaluation_batches(rest, self.transform, self.batch_size, context, seeds)
            return once.repeat() if self._again and not first_row else once

        return iter(self.strategy.distribute_datasets_from_function(batches))


def strategy_of(model: keras.Model) -> tf.distribute.Strategy:
    """Return the TensorFlow strategy of a model, or the default one on other backends."""
    if keras.backend.backend() == "tensorflow":
        return model.distribute_strategy
    return tf.distribute.get_strategy()


def _embedding_function(
    model: keras.Model, strategy: tf.distribute.Strategy, transform: Transform
) -> Callable[[Any], np.ndarray]:
    """Return a function from a batch, or its parts on the replicas, to all of its embeddings."""
    if keras.backend.backend() != "tensorflow":
        call = compiled(
            lambda images: model(images, training=False), model.variables, assigns=False
        )
        return lambda images: keras.ops.convert_to_numpy(
            call(keras.ops.convert_to_tensor(np.asarray(images)))
        )

    def embed(images: tf.Tensor) -> tf.Tensor:
        return gather_candidates(model(images, training=False))[0]

    # One replica: a single trace is enough for every batch size.
    if isinstance(transform, TextTransform):
        images = tf.TensorSpec([None, 2, transform.length], tf.int32)
    else:
        images = tf.TensorSpec([None, transform.image_size, transform.image_size, 3], tf.float32)
    alone = strategy.num_replicas_in_sync == 1
    graph = tf.function(
        lambda images: strategy.run(embed, args=(images,)),
        input_signature=[images] if alone else None,
        reduce_retracing=not alone,
    )
    return lambda images: strategy.experimental_local_results(graph(images))[0].numpy()


class IdentifiedEmbedder(NamedTuple):
    """An embedder, and a text that identifies its model and weights.

    Attributes:
        embedder: A `TableEmbedder`, or an object with the same `batches`, and with a text as its
            `transform` that identifies the preprocessing.
        key: The text.
    """

    embedder: Any
    key: str


def embeddings_on_disk(
    model: IdentifiedEmbedder, table: ImageTable, path: str | os.PathLike[str], description: str
) -> EmbeddingFile:
    """Embed a table into a file. After a stop, the same call resumes.

    Args:
        model: The embedder.
        table: The images.
        path: The file; see `EmbeddingFile`.
        description: Text of the progress bar.

    Returns:
        The complete file.
    """
    with EmbeddingFile(path, len(table), embedding_key(model, table)) as file:
        for rows in model.embedder.batches(table, description, file.done):
            file.append(rows)
    return file


def embedding_key(model: IdentifiedEmbedder, table: ImageTable) -> str:
    """Return a text that identifies the model, the preprocessing, and the images.

    The images are identified by their order and the state of their files.
    """
    digest = hashlib.sha256(str(table).encode())
    if table.paths is not None:
        for path in table.paths:
            status = os.stat(path)
            digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    for image in () if table.encoded is None else table.encoded:
        digest.update(hashlib.sha256(image).digest())
    for array in (table.arrays, table.boxes):
        digest.update(b"" if array is None else np.ascontiguousarray(array).data)
    return f"{model.key}; {model.embedder.transform}; {_READ_AS}; {digest.hexdigest()}"


def raw_pixels(
    table: ImageTable,
    batch_size: int,
    description: str = "raw pixels",
    max_pixels: int = MOST_PIXELS,
) -> np.ndarray:
    """Return the gray levels of each image at 32×32 pixels, `[n, 1024]`, with a progress bar.

    They are a baseline for embeddings. 32×32 is affordable for photographs.
    """
    transform = EvaluationTransform(32, (32, 32), max_pixels)
    parts = []
    with progress_bar(description, total=len(table)) as bar:
        for images in evaluation_batches(table, transform, batch_size):
            gray = tf.image.rgb_to_grayscale(images)
            parts.append(tf.reshape(gray, [len(images), -1]).numpy())
            bar.update(len(parts[-1]))
    return np.concatenate(parts)
