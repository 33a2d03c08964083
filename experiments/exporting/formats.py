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
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
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
        examples: Decoded images `[1, size, size, 3]` that set the scales of 8-bit integers. None
            for an export in float32.
    """

    model: keras.Model
    preprocessing: Callable[[tf.Tensor], tf.Tensor]
    examples: Sequence[Images] | None = None


class Format(NamedTuple):
    """A format.

    Attributes:
        file: Name of the export in its folder.
        packages: Modules that it needs, in the extra of its name.
        write: Writes a source to a path.
        load: Loads an export into its runtime.
        int8: Whether the format has 8-bit integers.
        takes: Description of the input, for the model card.
        example: Python code that computes `embeddings` of decoded `images`, for the model card.
    """

    file: str
    packages: tuple[str, ...]
    write: Callable[[Source, pathlib.Path], None]
    load: Callable[[pathlib.Path], Answer]
    int8: bool
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


def _exported(source: Source, path: pathlib.Path, format: str) -> None:
    """Export with Keras, with named input and output."""
    shape = source.model.input_shape[1:]
    inputs = keras.Input(shape, name=IMAGES)
    model = keras.Model(inputs, {EMBEDDINGS: source.model(inputs)}, name="embedding")
    signature = [keras.InputSpec(shape=(None, *shape), dtype="float32", name=IMAGES)]
    with quiet():
        model.export(str(path), format=format, input_signature=signature, verbose=False)


def _saved_model(source: Source, path: pathlib.Path) -> None:
    export_saved_model(source.model, path, source.preprocessing)


def _load_saved_model(path: pathlib.Path) -> Answer:
    model = tf.saved_model.load(str(path))

    def answer(images: Images) -> Any:
        return model.signatures["embed_images"](images=tf.constant(images))[EMBEDDINGS].numpy()

    return answer


def _onnx(source: Source, path: pathlib.Path) -> None:
    if source.examples is None:
        _exported(source, path, "onnx")
        return
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    inputs = ({IMAGES: image} for image in source.examples)
    reader: Any = types.SimpleNamespace(get_next=lambda: next(inputs, None))
    with tempfile.TemporaryDirectory() as folder:
        whole, prepared = (os.path.join(folder, name) for name in ("whole", "prepared"))
        _exported(source, pathlib.Path(whole), "onnx")
        with quiet():
            quant_pre_process(whole, prepared, skip_symbolic_shape=True)
            # A scale per filter: the filters of depthwise convolutions differ a hundredfold.
            quantization.quantize_static(prepared, str(path), reader, per_channel=True)


def _load_onnx(path: pathlib.Path) -> Answer:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda images: session.run([EMBEDDINGS], {IMAGES: images})[0]


def _openvino(source: Source, path: pathlib.Path) -> None:
    if source.examples is None:
        _exported(source, path, "openvino")
        return
    import nncf
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        whole = pathlib.Path(folder, "whole.xml")
        _exported(source, whole, "openvino")
        with quiet():
            images = nncf.Dataset(source.examples)
            model = nncf.quantize(
                openvino.Core().read_model(whole), images, subset_size=len(source.examples)
            )
            openvino.save_model(model, path, compress_to_fp16=False)


def _load_openvino(path: pathlib.Path) -> Answer:
    import openvino

    # Some processors compute in bfloat16 by default, which changes the third digit.
    model = openvino.compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda images: model(images)[0]


def _litert(source: Source, path: pathlib.Path) -> None:
    with quiet():
        converted = _litert_bytes(source.model)
        if source.examples is not None:
            converted = _litert_int8(converted, source.examples)
    path.write_bytes(converted)


def _litert_bytes(model: keras.Model) -> bytes:
    """Convert a model for one image: TensorFlow writes StableHLO, which LiteRT's converter reads.

    The result has only operations of LiteRT. TensorFlow's own converter, `tf.lite`, is deprecated.
    """
    from litert_converter import converter_api_ext as converter
    from litert_converter.mlir import ir, passmanager

    variables = [
        [variable.numpy() for variable in kind]
        for kind in (model.trainable_variables, model.non_trainable_variables)
    ]

    @tf.function(
        jit_compile=True,
        autograph=False,
        input_signature=[tf.TensorSpec((1, *model.input_shape[1:]), name=IMAGES)],
    )
    def embed(images: tf.Tensor) -> tf.Tensor:
        # Constants, because LiteRT's converter reads variables as further inputs.
        constants = [[tf.constant(array) for array in kind] for kind in variables]
        return model.stateless_call(*constants, images, training=False)[0]

    compiled = embed.experimental_get_compiler_ir(*embed.input_signature)
    context = ir.Context()
    converter.prepare_mlir_context(context)
    with context, ir.Location.unknown():
        module = ir.Module.parse(compiled(stage="stablehlo_serialized"))
        converter.set_signature(module.operation, "serving_default", [IMAGES], [EMBEDDINGS])
        converter.run_convert_to_tfl_passes(
            module, passmanager.PassManager(), converter.ConvertToTFLConfig()
        )
        return cast("bytes", converter.export_flatbuffer_to_bytes(module.operation))


def _litert_int8(model: bytes, examples: Sequence[Images]) -> bytes:
    """Quantize all operations to 8-bit integers. Input and output stay float32."""
    from ai_edge_quantizer import algorithm_manager, qtyping, quantizer, recipe

    int8 = quantizer.Quantizer(model, recipe.static_wi8_ai8())
    for name in (qtyping.TFLOperationName.INPUT, qtyping.TFLOperationName.OUTPUT):
        int8.update_quantization_recipe(
            regex=".*",
            operation_name=name,
            algorithm_key=algorithm_manager.AlgorithmName.NO_QUANTIZE,
        )
    # In one call, the quantizer averages over the images, and the first image dominates.
    ranges = [int8.calibrate({"serving_default": [{IMAGES: image}]}) for image in examples]
    widest = {
        tensor: {
            end: choose([found[tensor][end] for found in ranges], axis=0)
            for end, choose in (("min", np.min), ("max", np.max))
        }
        for tensor in ranges[0]
    }
    return bytes(int8.quantize(widest).quantized_model)


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
        False,
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
        True,
        "decoded images, any number",
        'session = onnxruntime.InferenceSession("model.onnx")  # import onnxruntime\n'
        'embeddings = session.run(["embeddings"], {"images": images})[0]',
    ),
    "openvino": Format(
        "model.xml",
        ("nncf", "openvino"),
        _openvino,
        _load_openvino,
        True,
        "decoded images, any number; `model.bin` belongs to it. On a processor with bfloat16 give "
        "`INFERENCE_PRECISION_HINT=f32` for the numbers below",
        'model = openvino.compile_model("model.xml", "CPU")  # import openvino\n'
        "embeddings = model(images)[0]",
    ),
    "litert": Format(
        "model.tflite",
        (
            "ai_edge_litert.interpreter",
            "ai_edge_quantizer.quantizer",
            "litert_converter.converter_api_ext",
        ),
        _litert,
        _load_litert,
        True,
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
        if source.examples is not None:
            one = one._replace(examples=[np.zeros((1, *part.input_shape[1:]), np.float32)])
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
