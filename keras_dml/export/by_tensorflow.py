"""Export of a model that was trained on JAX or PyTorch, by a TensorFlow process.

The process is `python -m keras_dml.export FOLDER`. The folder contains the model as a
`.keras` file, `preprocessing` as a SavedModel, an index, and the other arguments as JSON.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING

import keras

from keras_dml._backend.cloning import all_layers
from keras_dml._common.errors import ArgumentError
from keras_dml._common.extras import TensorFlow

if TYPE_CHECKING:
    import tensorflow as tf

    from keras_dml.retrieval import Index
else:
    tf = TensorFlow("export_saved_model")

MODEL, PREPROCESSING, INDEX, REST = "model.keras", "preprocessing", "index", "rest.json"
REFUSED = 2
"""Exit code of the process if it refuses an argument. Its last line of output is the reason."""


def export_by_tensorflow(
    model: keras.Model,
    path: pathlib.Path,
    preprocessing: Callable[[tf.Tensor], tf.Tensor],
    index: Index | None,
    neighbors: int,
    threshold: float | None,
) -> None:
    """Export as `export.export_saved_model`, with its arguments, which are already checked.

    Classes of user-defined layers must be in importable modules. TensorFlow state in
    `preprocessing` (tables, variables) is not supported.

    Raises:
        ValueError: TensorFlow or the process cannot load a part of the model or its preprocessing.
        RuntimeError: The TensorFlow process failed. The message is from the process.
    """
    modules = _modules(model)
    with tempfile.TemporaryDirectory(prefix="keras_dml-export-") as name:
        folder = pathlib.Path(name)
        model.save(folder / MODEL)
        _save_preprocessing(preprocessing, folder / PREPROCESSING)
        if index is not None:
            index.save(folder / INDEX)
        rest = {
            "path": str(path.absolute()),
            "neighbors": neighbors,
            "threshold": threshold,
            "modules": modules,
        }
        (folder / REST).write_text(json.dumps(rest))
        done = subprocess.run(
            [sys.executable, "-P", "-m", "keras_dml.export", str(folder)],
            env=_environment(),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    if done.returncode:
        if done.returncode == REFUSED:
            raise ArgumentError(done.stdout.splitlines()[-1])
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise RuntimeError(f"export_saved_model failed in its TensorFlow process: {said}")


def _save_preprocessing(
    preprocessing: Callable[[tf.Tensor], tf.Tensor], folder: pathlib.Path
) -> None:
    module = tf.Module()
    module.call = tf.function(preprocessing, input_signature=[tf.TensorSpec([], tf.string)])
    try:
        tf.saved_model.save(module, str(folder))
    except AssertionError as error:  # an untracked resource
        raise ArgumentError(
            "preprocessing must not contain tables or variables of TensorFlow on another backend, "
            f"but got {preprocessing!r}."
        ) from error


def _modules(model: keras.Model) -> list[str]:
    """Return the modules of layer classes that are not from Keras or this package."""
    found = {type(layer).__module__ for layer in all_layers(model)}
    if "__main__" in found:
        raise ArgumentError(
            "model must have only layers whose classes are in an importable module, but got a "
            "class of __main__. Move the class to a file, or export with the TensorFlow backend."
        )
    return sorted(name for name in found if name.partition(".")[0] not in ("keras", "keras_dml"))


def _environment() -> dict[str, str]:
    """Return this process's environment, with the same modules, TensorFlow, and no GPU."""
    return {
        **os.environ,
        "KERAS_BACKEND": "tensorflow",
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
