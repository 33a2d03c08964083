"""The formats of an exported embedding model: their writers and their runtimes.

The error of a conversion names the layer that the format lacks.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import pathlib
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from experiments.options.errors import UsageError, one_line
from keras_dml._backend.cloning import all_layers
from keras_dml._common.errors import ArgumentError
from keras_dml._common.extras import MissingExtraError, needing
from keras_dml.export import export_saved_model

Images = npt.NDArray[np.float32]
Answer = Callable[[Images], npt.NDArray[np.float32]]
"""Images float32 `[n, size, size, 3]` to embeddings `[n, d]`."""

IMAGES, EMBEDDINGS = "images", "embeddings"
"""Names of the input and the output in every format."""
# Errors that no layer causes.
_NOT_OF_A_LAYER = (OSError, MemoryError, MissingExtraError, UsageError, ArgumentError)


class Source(NamedTuple):
    """The model to export.

    Attributes:
        model: Functional model in float32, from decoded images to embeddings.
        preprocessing: Preprocessing of image files, for a SavedModel only.
    """

    model: keras.Model
    preprocessing: Callable[[tf.Tensor], tf.Tensor]


class Format(NamedTuple):
    """A format.

    Attributes:
        file: Name of the export in its folder.
        packages: Modules that it needs, in the extra of its name.
        write: Writes a source to a path.
        load: Loads an export into its runtime.
        takes: Description of the input, for the model card.
        example: Python code that computes `embeddings` of decoded `images`, for the model card.
    """

    file: str
    packages: tuple[str, ...]
    write: Callable[[Source, pathlib.Path], None]
    load: Callable[[pathlib.Path], Answer]
    takes: str
    example: str


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Discard everything that Python and native libraries print. Exceptions pass."""
    level = logging.root.manager.disable
    with contextlib.ExitStack() as undone, tempfile.TemporaryFile() as nowhere:
        for number, stream in ((1, sys.stdout), (2, sys.stderr)):
            stream.flush()
            kept = os.dup(number)
            undone.callback(os.close, kept)
            undone.callback(os.dup2, kept, number)
            undone.callback(stream.flush)  # before the descriptor is restored
            os.dup2(nowhere.fileno(), number)
        undone.callback(logging.disable, level)
        logging.disable(logging.CRITICAL)
        undone.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield


def _exported(
    source: Source, path: pathlib.Path, format: str, batch: int | None = None, **options: Any
) -> None:
    """Export with Keras, with named input and output."""
    shape = source.model.input_shape[1:]
    inputs = keras.Input(shape, name=IMAGES)
    model = keras.Model(inputs, {EMBEDDINGS: source.model(inputs)}, name="embedding")
    signature = [keras.InputSpec(shape=(batch, *shape), dtype="float32", name=IMAGES)]
    with quiet():
        model.export(str(path), format=format, input_signature=signature, verbose=False, **options)


def _saved_model(source: Source, path: pathlib.Path) -> None:
    export_saved_model(source.model, path, source.preprocessing)


def _load_saved_model(path: pathlib.Path) -> Answer:
    model = tf.saved_model.load(str(path))

    def answer(images: Images) -> Any:
        return model.signatures["embed_images"](images=tf.constant(images))[EMBEDDINGS].numpy()

    return answer


def _onnx(source: Source, path: pathlib.Path) -> None:
    _exported(source, path, "onnx")


def _load_onnx(path: pathlib.Path) -> Answer:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda images: session.run([EMBEDDINGS], {IMAGES: images})[0]


def _openvino(source: Source, path: pathlib.Path) -> None:
    _exported(source, path, "openvino")


def _load_openvino(path: pathlib.Path) -> Answer:
    import openvino

    # Some processors compute in bfloat16 by default, which changes the third digit.
    model = openvino.compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda images: model(images)[0]


def _litert(source: Source, path: pathlib.Path) -> None:
    # Keras would also allow operations of TensorFlow, which a phone's runtime lacks.
    built_in = {"supported_ops": [tf.lite.OpsSet.TFLITE_BUILTINS]}
    _exported(source, path, "litert", batch=1, target_spec=built_in)


def _load_litert(path: pathlib.Path) -> Answer:
    from ai_edge_litert.interpreter import Interpreter

    with quiet():
        interpreter = Interpreter(str(path), num_threads=os.cpu_count())
        interpreter.allocate_tensors()
        embed = interpreter.get_signature_runner()

    def answer(images: Images) -> npt.NDArray[np.float32]:
        return np.concatenate([embed(images=image[None])[EMBEDDINGS] for image in images])

    return answer


FORMATS: dict[str, Format] = {
    "saved_model": Format(
        "saved_model",
        (),
        _saved_model,
        _load_saved_model,
        "the bytes of image files, any number (`serving_default`), or decoded images "
        "(`embed_images`)",
        'model = tf.saved_model.load("saved_model")  # import tensorflow as tf\n'
        'answer = model.signatures["embed_images"](images=tf.constant(images))\n'
        'embeddings = answer["embeddings"].numpy()',
    ),
    "onnx": Format(
        "model.onnx",
        ("onnx", "onnxruntime", "tf2onnx"),
        _onnx,
        _load_onnx,
        "decoded images, any number",
        'session = onnxruntime.InferenceSession("model.onnx")  # import onnxruntime\n'
        'embeddings = session.run(["embeddings"], {"images": images})[0]',
    ),
    "openvino": Format(
        "model.xml",
        ("openvino",),
        _openvino,
        _load_openvino,
        "decoded images, any number; `model.bin` belongs to it. On a processor with bfloat16 give "
        "`INFERENCE_PRECISION_HINT=f32` for the numbers below",
        'model = openvino.compile_model("model.xml", "CPU")  # import openvino\n'
        "embeddings = model(images)[0]",
    ),
    "litert": Format(
        "model.tflite",
        ("ai_edge_litert.interpreter",),
        _litert,
        _load_litert,
        "one decoded image a call",
        'interpreter = Interpreter("model.tflite")  # from ai_edge_litert.interpreter\n'
        "embed = interpreter.get_signature_runner()\n"
        'embeddings = np.concatenate([embed(images=each[None])["embeddings"] for each in images])',
    ),
}
"""The formats by the words of `experiments.export --format`."""


def check_packages(name: str) -> None:
    """Import the packages of a format.

    Raises:
        MissingExtraError: A package is missing.
    """
    # Without this package, OpenVINO's converter sends no telemetry.
    sys.modules.setdefault("openvino_telemetry", cast("Any", None))
    with needing(name, f"format={name}"), quiet():
        for package in FORMATS[name].packages:
            importlib.import_module(package)


def write(name: str, format: Format, source: Source, path: pathlib.Path) -> None:
    """Write a source in a format. Temporary files of the converters are in the same folder.

    Raises:
        UsageError: The format lacks a layer of the model. The message names the layer.
    """
    with _temporary_files_in(path.parent):
        try:
            _converted(format, source, path)
        except _NOT_OF_A_LAYER:
            raise
        except Exception as error:  # converters raise any exception
            layer = _layer_that_fails(format, source)
            why = f"takes each layer, but not the whole model: {one_line(error)[:300]}"
            if layer is not None:
                why = (
                    f"does not have the layer {layer.name!r} ({type(layer).__name__}): export to "
                    "another format, or train without it"
                )
            raise UsageError(f"format={name} {why}") from error


@contextlib.contextmanager
def _temporary_files_in(folder: pathlib.Path) -> Iterator[None]:
    """Put temporary files in the folder, so that a killed process leaves none elsewhere."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix=".", dir=folder) as tempfile.tempdir:
        try:
            yield
        finally:
            tempfile.tempdir = before


def _converted(format: Format, source: Source, path: pathlib.Path) -> None:
    """Write and load the export: tf2onnx can write operations that onnxruntime lacks."""
    format.write(source, path)
    with quiet():
        format.load(path)


def _layer_that_fails(format: Format, source: Source) -> keras.layers.Layer | None:
    for layer, part in _parts(source.model):
        one = source._replace(model=part)
        with tempfile.TemporaryDirectory() as folder:
            try:
                _converted(format, one, pathlib.Path(folder, format.file))
            except _NOT_OF_A_LAYER:
                raise
            except Exception:
                return layer
    return None


def _parts(model: keras.Model) -> Iterator[tuple[keras.layers.Layer, keras.Model]]:
    """Yield one layer of each class as a model, if it has one input tensor."""
    kinds: set[type] = set()
    for layer in all_layers(model):
        if type(layer) in kinds or isinstance(layer, (keras.Model, keras.layers.InputLayer)):
            continue
        try:
            inputs = keras.Input(layer.input.shape[1:], dtype=layer.input.dtype)
            outputs = layer(inputs)
        except (AttributeError, ValueError, TypeError):
            continue  # several inputs, or part of another layer
        is_plain = inputs.dtype == "float32" and None not in inputs.shape[1:]
        if isinstance(outputs, keras.KerasTensor) and is_plain:
            kinds.add(type(layer))
            yield layer, keras.Model(inputs, outputs)
