"""Export of embedding models, with or without an index, as SavedModels. Needs TensorFlow."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import keras

from keras_dml._backend.cloning import all_layers, check_symbolic_model, ends_of
from keras_dml._common.checks import check_number, check_whole
from keras_dml._common.errors import ArgumentError, ArgumentTypeError, argument_error
from keras_dml._common.extras import TensorFlow, check_installed
from keras_dml._common.types import StrPath
from keras_dml._files.atomic import replacing_folder
from keras_dml._files.checksums import write_checksums
from keras_dml.export.by_tensorflow import export_by_tensorflow
from keras_dml.export.float32 import float32_copy, is_float32

# Valid TensorFlow scope names. The first character of an outermost scope is more restricted.
_SCOPE = re.compile(r"[A-Za-z0-9_.\\/>-]*")
_OUTERMOST = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")

if TYPE_CHECKING:
    import tensorflow as tf

    from keras_dml.metrics import OperatingPoint
    from keras_dml.retrieval import Index

    _Served = Callable[[tf.Tensor], dict[str, tf.Tensor]]
else:
    tf = TensorFlow("export_saved_model")


def export_saved_model(
    model: keras.Model,
    path: StrPath,
    preprocessing: Callable[[tf.Tensor], tf.Tensor],
    index: Index | None = None,
    neighbors: int = 10,
    threshold: float | OperatingPoint | None = None,
) -> None:
    """Write a SavedModel that takes images or texts and returns embeddings or neighbors.

    Its signatures take any number n of images, including 0:

    - `serving_default`: `images`, strings `[n]` (bytes of image files) → `embeddings`, float32
      `[n, d]`;
    - `embed_images`: `images`, float32 `[n, height, width, channels]` as from `preprocessing`
      (another size is InvalidArgument) → `embeddings`;
    - `search`, with an index: `images`, strings `[n]` → `ids`, int64 or strings `[n, neighbors]`,
      nearest first, and float32 `[n, neighbors]` `similarities` for an index with metric "cosine",
      `distances` for "l2". With a threshold also `matches`, bools `[n, neighbors]`: whether a
      neighbor's similarity is at least the threshold, or its distance at most the threshold.

    For an encoder of texts (`models.text_backbone`), `images` are UTF-8 strings, or int32 tokens
    `[n, 2, length]` in `embed_images`.

    `tf.saved_model.load` needs neither this package nor its layers. Only with the tree
    of a `ScannIndex`, the loading process must first run `import scann`, and for texts
    `import tensorflow_text`. The folder can be moved.
    If `preprocessing` refuses an image, only that call raises its error (tf.io's: InvalidArgument).
    A model in mixed precision or under a distribution strategy is exported as its `float32_copy`.
    The SavedModel is written next to `path` under a temporary name and then renamed. An existing
    SavedModel is removed last. `assets.extra/sha256.json`, which TensorFlow ignores, contains the
    files' checksums, which the commands verify.

    If Keras runs on JAX or PyTorch, a TensorFlow process loads the model from a file and writes the
    SavedModel (about ten seconds). This needs the extra `tensorflow`.

    Examples:
        >>> export_saved_model(model, "served", pipelines.EvaluationTransform(16))

    Args:
        model: A built functional or sequential embedding model: float32 images
            `[n, height, width, channels]`, or tokens, → `[n, d]`. A model around another, such as
            `RankMI`, exports the inner model.
        path: The folder to write. Its parent must exist.
        preprocessing: TensorFlow function from one image's bytes (scalar string) to a float32 image
            with the model's input shape, or `models.TextTransform`.
        index: None, or a `keras_dml.retrieval.Index` of embeddings of this model. The SavedModel
            includes its items.
        neighbors: Number of results of `search`, from 1 to the index's number of items.
        threshold: None, or with an index the score from which two embeddings match, in the index's
            metric: a number, or a point of `metrics.verification` of this model.

    Raises:
        ValueError: The parent of `path` is missing, `path` exists and is not a SavedModel, the
            model is invalid, TensorFlow does not accept a layer's name (`"a b"`, or `"_a"` of an
            outer layer), `preprocessing` returns another shape, the index has other dimensions,
            `neighbors` is out of range, or `threshold` has another metric or is set without an
            index.
        MissingExtraError: TensorFlow is not installed.
        TypeError: `preprocessing` is not callable, or `index` is not an `Index`.
    """
    while getattr(model, "wrapped", None) is not None:
        model = model.wrapped
    check_embedding_model(model, preprocessing)
    _check_index(model, index, neighbors)
    least = _checked_threshold(threshold, index)
    with replacing_folder(path, "saved_model.pb", "a SavedModel") as folder:
        if not _on_tensorflow():
            export_by_tensorflow(model, folder, preprocessing, index, neighbors, least)
            return
        model = _servable(model)
        decoded, embed, embed_files = _embedding_functions(model, preprocessing)
        archive = keras.export.ExportArchive()
        archive.track(model)
        files = tf.TensorSpec([None], tf.string, name="images")
        archive.add_endpoint("serving_default", embed_files, [files])
        archive.add_endpoint("embed_images", embed, [decoded])
        if index is not None:
            search = _search_function(embed_files, index, neighbors, least)
            archive.add_endpoint("search", search, [files])
        archive.write_out(str(folder), verbose=False)
        write_checksums(folder)


def check_export(model: keras.Model, preprocessing: Callable[[tf.Tensor], tf.Tensor]) -> None:
    """Raise the errors that `export_saved_model` would raise for a model, before its training.

    It traces the functions of the SavedModel and writes nothing. On other backends than TensorFlow,
    it traces only the preprocessing. Python's random state, from which Keras draws the seeds of
    layers without a seed, is restored.

    Examples:
        >>> check_export(model, pipelines.EvaluationTransform(16))

    Args:
        model, preprocessing: As in `export_saved_model`.

    Raises:
        ValueError, TypeError: As in `export_saved_model`. Also the errors of layers that cannot be
            traced.
    """
    check_embedding_model(model, preprocessing)
    if not _on_tensorflow():
        return
    state = random.getstate()
    try:
        _, _, embed_files = _embedding_functions(_servable(model), preprocessing)
        # Traced without AutoGraph, as ExportArchive does.
        files = tf.TensorSpec([None], tf.string, name="images")
        tf.function(embed_files, [files], autograph=False).get_concrete_function()
    finally:
        random.setstate(state)


def _on_tensorflow() -> bool:
    return keras.backend.backend() == "tensorflow"


def _check_names(model: keras.Model) -> None:
    layers = all_layers(model)
    # TensorFlow writes the variables of a layer of any model, and a function for each nested model,
    # under the name of that layer or model.
    models = [layer for layer in layers if isinstance(layer, keras.Model)]
    outermost = {id(layer) for each in models for layer in (each, *each.layers)}
    for layer in layers[1:]:
        is_outermost = id(layer) in outermost
        if not (_OUTERMOST if is_outermost else _SCOPE).fullmatch(layer.name):
            raise ArgumentError(
                "model must have layers with names of only letters, digits, and _ . / > -, which "
                f"begin with a letter or digit, but got {layer.name!r}. Rename this layer for "
                "TensorFlow."
            )


def _servable(model: keras.Model) -> keras.Model:
    """Return the model in float32, under a name that TensorFlow accepts."""
    if not is_float32(model):
        model = float32_copy(model)
    if not _OUTERMOST.fullmatch(model.name):
        model = keras.Model(ends_of(model)[0], model.outputs[0], name="model")
    return model


def _takes_tokens(model: keras.Model) -> bool:
    """Return whether a model takes tokens of texts."""
    return len(model.inputs) == 1 and model.inputs[0].dtype == "int32"


def check_embedding_model(
    model: keras.Model, preprocessing: Callable[[tf.Tensor], tf.Tensor]
) -> None:
    """Raise the errors of `export_saved_model` that need no trace of the model."""
    check_installed("tensorflow", "tensorflow", "export_saved_model")
    if not callable(preprocessing):
        wanted = "a function from image bytes to an image"
        raise argument_error("preprocessing", wanted, preprocessing, ArgumentTypeError)
    check_symbolic_model("model", model)
    taken = len(model.input_shape) if _takes_tokens(model) else 4
    for name, shape, rank in (("in", model.input_shape, taken), ("out", model.output_shape, 2)):
        if not isinstance(shape, tuple) or len(shape) != rank:
            raise ArgumentError(
                "model must take one batch of images [n, height, width, channels] and return one "
                f"batch of embeddings [n, d], but got {name}put shape {shape}."
            )
    _check_names(model)
    _decoded(model, preprocessing)


def _check_index(model: keras.Model, index: Index | None, neighbors: int) -> None:
    if index is None:
        return
    from keras_dml.retrieval import Index

    if not isinstance(index, Index):
        wanted = "None or a keras_dml.retrieval.Index"
        raise argument_error("index", wanted, index, ArgumentTypeError)
    if index.dimensions != model.output_shape[1]:
        raise ArgumentError(
            f"index must have embeddings of this model, of {model.output_shape[1]} dimensions, but "
            f"got an index of {index.dimensions} dimensions."
        )
    check_whole("neighbors", neighbors, least=1, most=index.num_items)


def _checked_threshold(
    threshold: float | OperatingPoint | None, index: Index | None
) -> float | None:
    if threshold is None:
        return None
    if index is None:
        raise argument_error("threshold", "None without an index", threshold)
    from keras_dml.metrics import OperatingPoint

    if isinstance(threshold, OperatingPoint):
        if threshold.metric != index.metric:
            raise ArgumentError(
                f"threshold must be of the index's metric, {index.metric}, but got a threshold of "
                f"metric={threshold.metric}."
            )
        threshold = threshold.threshold
    return check_number("threshold", threshold)


def _decoded(
    model: keras.Model, preprocessing: Callable[[tf.Tensor], tf.Tensor]
) -> tuple[Callable[[tf.Tensor], tf.Tensor], tf.TensorSpec, tf.TensorShape]:
    """Return the function from a file to an image, the input spec, and the image's shape."""
    dtype = tf.int32 if _takes_tokens(model) else tf.float32
    image = tf.TensorSpec(model.input_shape[1:], dtype)
    # ExportArchive traces without AutoGraph, but preprocessing can need it for Python conditions.
    traced = tf.function(preprocessing, input_signature=[tf.TensorSpec([], tf.string)])
    returned = traced.get_concrete_function().structured_outputs
    if not isinstance(returned, tf.Tensor) or not image.is_compatible_with(returned):
        raise ArgumentError(
            f"preprocessing must return an image of the model's input, {image.dtype.name} of "
            f"shape {image.shape}, but got {returned}."
        )

    # A model with a variable image size is served with the size of the preprocessed images.
    return traced, image, image.shape.merge_with(returned.shape)


def decoding_function(
    model: keras.Model, preprocessing: Callable[[tf.Tensor], tf.Tensor]
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return the function from strings `[n]` to a batch of a model's inputs."""
    traced, image, _ = _decoded(model, preprocessing)

    def decode(files: tf.Tensor) -> tf.Tensor:
        return tf.map_fn(traced, files, fn_output_signature=image)

    return tf.function(decode, input_signature=[tf.TensorSpec([None], tf.string)])


def _embedding_functions(
    model: keras.Model, preprocessing: Callable[[tf.Tensor], tf.Tensor]
) -> tuple[tf.TensorSpec, _Served, _Served]:
    """Return the spec of decoded images, and functions from them and from files to embeddings."""
    traced, image, size = _decoded(model, preprocessing)
    decoded = tf.TensorSpec([None, *size], image.dtype, name="images")

    def embed(images: tf.Tensor) -> dict[str, tf.Tensor]:
        # A loaded signature does not check the size of its inputs.
        images = tf.ensure_shape(images, decoded.shape)
        with tf.name_scope("embed"):  # the model's name can be invalid as an outermost scope
            return {"embeddings": tf.cast(model(images, training=False), tf.float32)}

    def embed_files(images: tf.Tensor) -> dict[str, tf.Tensor]:
        return embed(tf.map_fn(traced, images, fn_output_signature=image))

    return decoded, embed, embed_files


def _search_function(
    embed_files: _Served, index: Index, neighbors: int, threshold: float | None
) -> _Served:
    module = index.serving_module()
    scores_name = "similarities" if index.metric == "cosine" else "distances"
    is_match = tf.greater_equal if index.metric == "cosine" else tf.less_equal

    def search(images: tf.Tensor) -> dict[str, tf.Tensor]:
        ids, scores = module.search(embed_files(images)["embeddings"], int(neighbors))
        found = {"ids": ids, scores_name: scores}
        if threshold is not None:
            found["matches"] = is_match(scores, threshold)
        return found

    return search
