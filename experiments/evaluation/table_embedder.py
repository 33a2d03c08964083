"""Embeddings of a whole table, and their recall at K."""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, overload

import keras
import numpy as np
import tensorflow as tf

from experiments.evaluation.embedding_file import EmbeddingFile
from experiments.options.progress import progress_bar
from keras_dml._backend.replicas import gather_candidates
from keras_dml._backend.steps import compiled
from keras_dml._common.types import METRICS
from keras_dml.metrics import recall_at_k
from pipelines import EvaluationTransform, ImageTable, TrainTransform, evaluation_batches

# Part of what embeddings on disk are known by: before, turned photos were embedded as they lay.
_READ_AS = "turned upright"


class TableEmbedder:
    """Tables of images to float32 embeddings `[n, d]`, in row order.

    The replicas of the model's strategy share the images; every worker gets all embeddings.

    Args:
        model: embedding model.
        transform: evaluation transform; with `seeds` a training transform.
        batch_size: images embedded at once, on each replica.
        seeds: int64 `[n, 2]`, of the augmentation of each image of the one table that is embedded;
            None: there is none.
        again: whether tables are embedded again and again, by other weights. The pipeline of each
            is kept, with the first batches of its next round in it: to begin one takes seconds,
            and memory that TensorFlow does not give back.
    """

    def __init__(
        self,
        model: keras.Model,
        transform: EvaluationTransform | TrainTransform,
        batch_size: int,
        seeds: np.ndarray | None = None,
        again: bool = False,
    ) -> None:
        self.transform = transform
        self.batch_size = batch_size
        self.seeds = seeds
        self.strategy = strategy_of(model)
        # Made once: every new graph would be traced anew at each evaluation.
        self._embed = _embedding_function(model, self.strategy, transform.image_size)
        # Several workers begin each round together.
        several = isinstance(self.strategy, tf.distribute.MultiWorkerMirroredStrategy)
        self._again = again and not several
        # With the table, so that no other one can have its id.
        self._begun: dict[int, tuple[ImageTable, Iterator[tf.Tensor]]] = {}

    def __call__(self, table: ImageTable, description: str = "embedding") -> np.ndarray:
        """The table's embeddings, with a progress bar.

        Raises:
            FloatingPointError: embeddings that are not finite.
        """
        embeddings = np.concatenate(list(self.batches(table, description)))
        if not np.isfinite(embeddings).all():
            raise FloatingPointError("the embeddings are no longer finite")
        return embeddings

    def batches(
        self, table: ImageTable, description: str = "embedding", first_row: int = 0
    ) -> Iterator[np.ndarray]:
        """Yields the embeddings of the rows from `first_row` on, `[b, d]`, with a progress bar."""
        left = len(table) - first_row
        if not left:
            return
        # Out of it until the round is over: one that was left amid its round begins anew.
        _, images = self._begun.pop(id(table), (table, None)) if not first_row else (table, None)
        images = images or self._images(table, first_row)
        with progress_bar(description, total=len(table), initial=first_row) as bar:
            while left:
                rows = self._embed(next(images))[:left]  # without the last row's repetitions
                left -= len(rows)
                bar.update(len(rows))
                yield rows.astype("float32")
        if self._again and not first_row:
            self._begun[id(table)] = table, images

    def _images(self, table: ImageTable, first_row: int) -> Iterator[tf.Tensor]:
        """Batches of the rows from `first_row` on; endless rounds of them where it is kept."""
        rest = table.select(np.arange(first_row, len(table))) if first_row else table
        seeds = None if self.seeds is None else self.seeds[first_row:]

        def batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
            once = evaluation_batches(rest, self.transform, self.batch_size, context, seeds)
            return once.repeat() if self._again and not first_row else once

        return iter(self.strategy.distribute_datasets_from_function(batches))


def strategy_of(model: keras.Model) -> tf.distribute.Strategy:
    """That of TensorFlow's that a model was made under; the default one on other backends."""
    if keras.backend.backend() == "tensorflow":
        return model.distribute_strategy
    return tf.distribute.get_strategy()


def _embedding_function(
    model: keras.Model, strategy: tf.distribute.Strategy, image_size: int
) -> Callable[[Any], np.ndarray]:
    """From a batch of tf.data, or each replica's part of one, to the embeddings of the whole."""
    if keras.backend.backend() != "tensorflow":
        call = compiled(
            lambda images: model(images, training=False), model.variables, assigns=False
        )
        return lambda images: keras.ops.convert_to_numpy(
            call(keras.ops.convert_to_tensor(np.asarray(images)))
        )

    def embed(images: tf.Tensor) -> tf.Tensor:
        return gather_candidates(model(images, training=False))[0]

    # On one replica a batch is one tensor: a single trace serves every batch size.
    images = tf.TensorSpec([None, image_size, image_size, 3], tf.float32)
    alone = strategy.num_replicas_in_sync == 1
    graph = tf.function(
        lambda images: strategy.run(embed, args=(images,)),
        input_signature=[images] if alone else None,
        reduce_retracing=not alone,
    )
    return lambda images: strategy.experimental_local_results(graph(images))[0].numpy()


class EmbedsTables(Protocol):
    """Embeds the images of a table batch by batch: `TableEmbedder`, `ServedEmbedder`.

    `transform` as text says what happens to an image before the model gets it.
    """

    transform: Any

    def batches(
        self, table: ImageTable, description: str = "embedding", first_row: int = 0
    ) -> Iterator[np.ndarray]:
        """Yields the embeddings of the rows from `first_row` on, `[b, d]`."""


class SharedWork(Protocol):
    """The processes that embed together, as this one sees them."""

    first: bool

    def from_first(self, array: np.ndarray) -> np.ndarray:
        """The array of the first worker."""


class IdentifiedEmbedder(NamedTuple):
    """An embedder, and text that names its model and weights: other weights, other text."""

    embedder: EmbedsTables
    key: str


@overload
def embeddings_on_disk(
    model: IdentifiedEmbedder,
    table: ImageTable,
    path: str | os.PathLike[str],
    description: str,
    dtype: str = "float32",
    workers: None = None,
) -> EmbeddingFile: ...


@overload
def embeddings_on_disk(
    model: IdentifiedEmbedder,
    table: ImageTable,
    path: str | os.PathLike[str],
    description: str,
    dtype: str = "float32",
    *,
    workers: SharedWork,
) -> EmbeddingFile | None: ...


def embeddings_on_disk(
    model: IdentifiedEmbedder,
    table: ImageTable,
    path: str | os.PathLike[str],
    description: str,
    dtype: str = "float32",
    workers: SharedWork | None = None,
) -> EmbeddingFile | None:
    """The table's embeddings, in a file that an evaluation which was stopped goes on with.

    Args:
        model: what embeds.
        table: the images.
        path: of the file; see `EmbeddingFile`.
        description: of the progress bar.
        dtype: "float32" or "float16".
        workers: those that embed together; the first alone has the file.

    Returns:
        The `EmbeddingFile`, whole; None on a worker beside the first.
    """
    file = None
    if workers is None or workers.first:
        file = EmbeddingFile(path, len(table), embedding_key(model, table), dtype)
    with file or contextlib.nullcontext():
        done = np.array(file.done if file else 0)
        first_row = int(done if workers is None else workers.from_first(done))
        for rows in model.embedder.batches(table, description, first_row):
            if file:
                file.append(rows)
    return file


def embedding_key(model: IdentifiedEmbedder, table: ImageTable) -> str:
    """Text that is another one for another model, other images or another look at them."""
    return f"{model.key}; {model.embedder.transform}; {_READ_AS}; {table_fingerprint(table)}"


def table_fingerprint(table: ImageTable) -> str:
    """Text that is another one for other images, another order, or a file that was changed."""
    digest = hashlib.sha256(str(table).encode())
    if table.paths is not None:
        for path in table.paths:
            status = os.stat(path)
            digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    for image in () if table.encoded is None else table.encoded:
        digest.update(hashlib.sha256(image).digest())
    for array in (table.arrays, table.boxes):
        digest.update(b"" if array is None else np.ascontiguousarray(array).data)
    return digest.hexdigest()


def recalls(
    embeddings: np.ndarray, labels: np.ndarray, ks: Sequence[int], **gallery: np.ndarray | None
) -> dict[str, dict[int, float]]:
    """Recall at each K for both distances: `{"cosine": {K: share}, "l2": {K: share}}`."""
    return {metric: recall_at_k(embeddings, labels, ks, metric, **gallery) for metric in METRICS}


def raw_pixels(table: ImageTable, batch_size: int) -> np.ndarray:
    """The images themselves as vectors: grey levels of 32×32 pixels, `[n, 1024]`.

    The floor that an embedding has to beat. 32×32 keeps it affordable for photographs.
    """
    transform = EvaluationTransform(image_size=32, resize=(32, 32))
    parts = []
    with progress_bar("raw pixels", total=len(table)) as bar:
        for images in evaluation_batches(table, transform, batch_size):
            gray = tf.image.rgb_to_grayscale(images)
            parts.append(tf.reshape(gray, [len(images), -1]).numpy())
            bar.update(len(parts[-1]))
    return np.concatenate(parts)
