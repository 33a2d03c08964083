"""Conversion of a model, with an error that names a layer that the format lacks."""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
from collections.abc import Iterator

import keras
import numpy as np

from experiments.exporting.formats import Format, Source, quiet
from experiments.options.errors import UsageError, one_line
from keras_dml._backend.cloning import all_layers
from keras_dml._common.errors import ArgumentError
from keras_dml._common.extras import MissingExtraError

# Errors that no layer causes.
_NOT_OF_A_LAYER = (OSError, MemoryError, MissingExtraError, UsageError, ArgumentError)


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
