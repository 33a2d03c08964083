"""Embed tables of images by models, and the models of `experiments.evaluate`."""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
import tensorflow as tf

import pipelines
from experiments.evaluation.embedded_sets import PICTURES, EmbeddedSet, EmbeddedSets
from experiments.evaluation.embedding_file import EmbeddingFile
from experiments.evaluation.saved_model import ImageEmbedder
from experiments.options import RunOptions
from experiments.options import data as options_data
from experiments.options.conversions import import_modules
from experiments.options.errors import RunError, UsageError
from experiments.options.run_options import EvaluationOptions
from experiments.options.texts import text_picture
from keras_dml._backend.replicas import gather_candidates
from keras_dml._backend.steps import compiled
from keras_dml._common.progress import Bar
from keras_dml._files.manifest import sha256
from keras_dml.export import float32_copy
from keras_dml.export.load import fingerprint
from keras_dml.models import TextTransform, load_keras_file
from pipelines import EvaluationTransform, ImageTable, Split, TrainTransform, evaluation_batches
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
        with Bar(description, total=len(table), initial=first_row) as bar:
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
    with Bar(description, total=len(table)) as bar:
        for images in evaluation_batches(table, transform, batch_size):
            gray = tf.image.rgb_to_grayscale(images)
            parts.append(tf.reshape(gray, [len(images), -1]).numpy())
            bar.update(len(parts[-1]))
    return np.concatenate(parts)


def evaluated_tables(
    data: Split, split: str, dataset: str | None
) -> tuple[dict[str, ImageTable], int]:
    """Return the evaluated images of a dataset.

    Args:
        data: The dataset.
        split: "test", "train", or "all".
        dataset: Name of the dataset.

    Returns:
        `(tables, trained)`: tables by the sets of `EmbeddedSets`, and how many classes of the
        queries are training classes of the dataset.

    Raises:
        UsageError: The split is "all", and the dataset has a gallery.
    """
    train, test = data.train, data.test
    if split == "train":
        return {"queries": train}, train.num_classes
    if split == "test":
        others = {"gallery": data.gallery, "catalog": data.catalog}
        there = {name: table for name, table in others.items() if table is not None}
        return {"queries": test, **there}, test.num_classes if data.same_classes else 0
    if data.gallery is not None:
        raise UsageError(
            f"split must be test or train with a gallery, but got all with dataset={dataset}."
        )
    offset, class_names = 0, train.class_names
    if not data.same_classes:
        offset, class_names = train.num_classes, train.class_names + test.class_names
    labels = np.concatenate([train.labels, test.labels + offset])
    images = {
        kind: np.concatenate([getattr(train, kind), getattr(test, kind)])
        for kind in ("paths", "arrays", "encoded", "boxes")
        if getattr(train, kind) is not None
    }
    coarse_ids = train.coarse_ids
    if coarse_ids is not None and test.coarse_ids is not None and not data.same_classes:
        coarse_ids = np.concatenate([coarse_ids, test.coarse_ids])
    table = ImageTable(labels, class_names, coarse_ids=coarse_ids, **images)
    return {"queries": table}, train.num_classes


def classes_line(data: Split, split: str, queries: ImageTable, every_class: bool = False) -> str:
    """Return which of the classes of a dataset are evaluated, and why.

    Args:
        data: The dataset.
        split: "test", "train", or "all".
        queries: The evaluated images.
        every_class: Whether every image trains.
    """
    if every_class:
        return f"all {len(queries):,} images of {queries.num_classes:,} classes, which all train"
    if data.same_classes:
        most, some = len(data.train) + len(data.test), len(queries)
        of = f"images of {queries.num_classes:,} classes"
    else:
        most, some = data.train.num_classes + data.test.num_classes, queries.num_classes
        of = f"classes ({options_data.classes_in_words(queries)})"
    if split == "all":
        return f"all {most:,} {of}"
    why = "tests" if split == "test" else "trains on"
    advice = "" if data.gallery is not None else f". --split=all scores all {most:,}"
    return f"{some:,} of {most:,} {of}: those that a run {why}{advice}"


class ServedEmbedder:
    """Embeds a table by a SavedModel, which gets the unchanged files.

    Args:
        path: As for `ImageEmbedder`.
        batch_size: Number of images in a batch.

    Attributes:
        dimensions: Length of an embedding.
    """

    transform = "its own preprocessing"

    def __init__(self, path: str | os.PathLike[str], batch_size: int) -> None:
        self._embed = ImageEmbedder(path)
        self.dimensions = self._embed.dimensions
        self._batch_size = batch_size

    def batches(
        self, table: ImageTable, description: str = "embedding", first_row: int = 0
    ) -> Iterator[np.ndarray]:
        """Yield the embeddings of the rows from `first_row` on, `[b, d]`, with a progress bar.

        Raises:
            UsageError: An image cannot be read, or its embedding is not finite.
        """
        if first_row == len(table):
            return
        left = table.select(np.arange(first_row, len(table)))
        files = pipelines.evaluation_batches(left, _encoded, self._batch_size)
        with Bar(description, total=len(table), initial=first_row) as bar:
            for images in files:
                rows, bad = self._embed(images.numpy().tolist())
                for row, reason in bad.items():
                    name = options_data.image_names("evaluated", table)[bar.n + row]
                    raise UsageError(f"{name}: {reason}")
                bar.update(len(rows))
                yield rows


def _encoded(image: tf.Tensor) -> tf.Tensor:
    """Return an image as the bytes of an image file."""
    return image if image.dtype == tf.string else tf.io.encode_png(image)


def saved_model(
    path: str | os.PathLike[str], options: EvaluationOptions, table: ImageTable
) -> IdentifiedEmbedder:
    """Return the embedder of a SavedModel for the images of `table`."""
    if table.boxes is not None:
        raise UsageError(
            f"crop_to_box must be unset with saved_model={path}, which takes whole image files. "
            "Use --model."
        )
    return IdentifiedEmbedder(ServedEmbedder(path, options.eval_batch_size), fingerprint(path))


def keras_model(
    path: str | os.PathLike[str], options: EvaluationOptions | RunOptions, flag: str
) -> IdentifiedEmbedder:
    """Return the embedder of a `.keras` file.

    Args:
        path: The file.
        options: The options of its images. The default of `image_size` is the model's input size.
        flag: Flag of the path, for messages.

    Raises:
        UsageError: The file is not a model from images to embeddings.
    """
    path = pathlib.Path(path).expanduser()
    if not path.is_file():
        raise UsageError(f"{flag} must be a .keras file, but {path} is not a file.")
    import_modules(options.import_modules)
    try:
        model = load_keras_file(path, options.trust_code)
    except ValueError as error:
        raise UsageError(f"{flag} cannot be loaded from {path}: {error}") from error
    shape = getattr(model, "input_shape", None) if getattr(model, "inputs", None) else None
    size = None
    if shape is not None:  # not a subclassed model
        is_image = isinstance(shape, tuple) and len(shape) == 4 and shape[1] == shape[2]
        if not is_image or shape[3] not in (3, None):
            raise UsageError(
                f"A model must take images [n, size, size, 3], but the input of {path} has the "
                f"shape {shape}."
            )
        size = shape[1]
    given = options.image_size if "image_size" in options.given else None
    if size and given not in (None, size):
        raise UsageError(
            f"image_size must be {size}, the size of the model's input, but got {given}."
        )
    takes = size or given
    if takes is None:
        raise UsageError(f"image_size must be set, because the input of {path} has no size.")
    _check_by_a_call(model, takes, f"{flag}={path}")
    if shape is not None:
        model = float32_copy(model)
    options = dataclasses.replace(options, image_size=takes)
    return _embedder(model, options, sha256(path))


def text_model(
    path: str | os.PathLike[str], options: EvaluationOptions, transform: TextTransform
) -> IdentifiedEmbedder:
    """Return the embedder of texts by a `.keras` file of a run."""
    model = load_keras_file(path, options.trust_code)
    embedder = TableEmbedder(model, transform, options.eval_batch_size)
    return IdentifiedEmbedder(embedder, sha256(path))


def backbone_model(model: keras.Model, options: EvaluationOptions, name: str) -> IdentifiedEmbedder:
    """Return the embedder of a backbone with its pooling. Its name and weights identify it."""
    digest = hashlib.sha256(name.encode())
    for array in model.get_weights():
        digest.update(np.ascontiguousarray(array).data)
    return _embedder(float32_copy(model), options, digest.hexdigest())


def _embedder(
    model: keras.Model, options: EvaluationOptions | RunOptions, key: str
) -> IdentifiedEmbedder:
    transform = options_data.evaluation_transform(options)
    return IdentifiedEmbedder(TableEmbedder(model, transform, options.eval_batch_size), key)


def _check_by_a_call(model: keras.Model, size: int, received: str) -> None:
    """Raise `UsageError` if the model does not map images to embeddings."""
    try:
        outputs = model(np.zeros([1, size, size, 3], "float32"), training=False)
    except (ValueError, TypeError, tf.errors.OpError) as error:
        # Remove the colors and the list of arguments that Keras adds.
        why = re.sub(r"\x1b\[\d+m", "", str(error)).partition("Arguments received")[0]
        raise UsageError(
            f"A model must map images [n, {size}, {size}, 3] to embeddings, but got {received} "
            f"({' '.join(why.split())})."
        ) from error
    if not keras.ops.is_tensor(outputs) or len(outputs.shape) != 2:
        shape = keras.tree.map_structure(lambda array: tuple(np.shape(array)), outputs)
        raise UsageError(
            "A model must map images to embeddings [n, d], but the output of "
            f"{received} for one image has the shape {shape}."
        )


def embed(
    model: IdentifiedEmbedder,
    tables: Mapping[str, ImageTable],
    folder: pathlib.Path,
    candidate_model: IdentifiedEmbedder | None = None,
) -> EmbeddedSets:
    """Embed images into files of a folder. The same call resumes after a stop.

    Args:
        model: The embedder.
        tables: The images, from `evaluated_tables`.
        folder: Where the files are.
        candidate_model: The embedder of the gallery and the catalog. None: `model`.

    Raises:
        UsageError: An image cannot be read, a model does not accept it, or the embeddings of the
            models differ in length.
        RunError: Out of memory.
    """
    arrays = {}
    for name, table in tables.items():
        one, suffix = (model, "") if name == "queries" else (candidate_model or model, f"_{name}")
        arrays[name] = embed_table(one, table, folder / f"evaluation{suffix}.npy")
    lengths = [array.shape[1] for array in arrays.values()]
    if len(set(lengths)) > 1:
        raise UsageError(
            f"candidate_model must give embeddings of length {lengths[0]}, as the model of the "
            f"queries, but got {lengths[-1]}."
        )
    sets = {name: EmbeddedSet(arrays[name], each.labels, each) for name, each in tables.items()}
    transform = model.embedder.transform
    of_candidates = getattr(candidate_model, "embedder", model.embedder).transform
    return EmbeddedSets(
        **sets,
        transform=transform if callable(transform) else PICTURES,
        catalog_transform=text_picture if isinstance(of_candidates, TextTransform) else None,
    )


def embed_table(model: IdentifiedEmbedder, table: ImageTable, path: pathlib.Path) -> np.ndarray:
    """Embed images into a file, as `embed`."""
    with naming_bad_images(table, "the same command continues where it stopped"):
        return embeddings_on_disk(model, table, path, "embedding").array()


@contextlib.contextmanager
def naming_bad_images(table: ImageTable, advice: str = "") -> Iterator[None]:
    """Turn errors about the images of a table into one line that names the image.

    Args:
        table: The images.
        advice: Effect of the same command after missing images are restored; empty if they may have
            been missing from the start.

    Raises:
        UsageError: An image cannot be read, or an embedding is not finite.
        RunError: Out of memory, or images are missing.
    """
    try:
        yield
    except FloatingPointError as error:
        raise UsageError("the model gives embeddings that are not finite") from error
    except tf.errors.ResourceExhaustedError as error:
        raise RunError("out of memory; a smaller --eval_batch_size needs less") from error
    except tf.errors.OpError as error:
        bad = pipelines.find_bad_images(table) if table.arrays is None else []
        options_data.check_still_there(bad, advice)
        why = options_data.not_an_image("evaluated", table, bad) if bad else error.message
        raise UsageError(why) from error
