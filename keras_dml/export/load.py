"""Loading of SavedModels that `export_saved_model` or another library wrote."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_dml._common.errors import ArgumentError
from keras_dml._common.extras import TensorFlow, needing
from keras_dml._common.types import StrPath
from keras_dml._files.checksums import check_saved_model

_SIGNATURE = "serving_default"
# Names of the operations of a tokenizer, which no name of a layer, such as Tokenizer, matches.
_OF_TEXTS = re.compile(rb"TFText>|TokenizeWithOffsets|TokenizeOp")
# Operations on image files, such as DecodeImage and DecodeAndCropJpeg.
_DECODES = re.compile(rb"Decode(?!Base64|CSV|JSON|Proto|Compressed)")

tf: Any = TensorFlow("a SavedModel")


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A SavedModel from the bytes of image files, or from texts, to embeddings.

    Attributes:
        dimensions: d.
        takes_text: Whether the strings are texts: the graph decodes no images, or has a tokenizer.
    """

    dimensions: int
    takes_text: bool
    _input: str
    _function: Any
    _model: Any  # stored, because it owns the variables

    def __call__(self, strings: Sequence[bytes | str]) -> np.ndarray:
        """Return the embeddings float32 `[n, d]` of n strings."""
        found = self._function(**{self._input: tf.constant(strings)})["embeddings"]
        return np.asarray(found, np.float32)


def load_saved_model(path: StrPath) -> LoadedModel:
    """Load a SavedModel, and the operations of ScaNN or of a tokenizer that it needs.

    Args:
        path: Folder of a SavedModel whose signature `serving_default` maps strings `[n]` to
            `embeddings`, `[n, d]`.

    Raises:
        ValueError: The folder is not a SavedModel, it is damaged, or it has another signature.
        MissingExtraError: A package that the model needs is not installed.
    """
    path = pathlib.Path(path)
    _check_is_saved_model(path)
    try:
        check_saved_model(path)
    except ArgumentError as error:
        raise ArgumentError(
            f"saved_model must have its exported files, but got {path}, which is damaged. Copy "
            f"or export it again. {error}"
        ) from error
    try:
        # A model that contains an index needs the operations of ScaNN.
        graph = (path / "saved_model.pb").read_bytes()
        if b"Scann>" in graph:
            from keras_dml.retrieval.scann_import import import_operations

            import_operations()
        if _OF_TEXTS.search(graph):
            with needing("hub", "a SavedModel of texts"):
                importlib.import_module("tensorflow_text")
        model = tf.saved_model.load(str(path))
    # RuntimeError: an operation is not registered.
    except (OSError, ImportError, ValueError, RuntimeError, tf.errors.OpError) as error:
        raise ArgumentError(f"saved_model cannot be loaded from {path}: {error}") from error
    takes_text = not _DECODES.search(graph) or bool(_OF_TEXTS.search(graph))
    function = model.signatures.get(_SIGNATURE)
    name, dimensions = _described(function, path)
    return LoadedModel(dimensions, takes_text, name, function, model)


def fingerprint(path: StrPath) -> str:
    """Return the SHA-256 of a SavedModel's files in hexadecimal digits.

    Raises:
        ValueError: The folder is not a SavedModel.
    """
    path = pathlib.Path(path)
    _check_is_saved_model(path)
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        # fingerprint.pb has a random number, which differs between exports of the same weights.
        if file.is_file() and file.name != "fingerprint.pb":
            digest.update(os.fsencode(f"{file.relative_to(path)}\0{file.stat().st_size}\0"))
            with open(file, "rb") as stream:
                hashlib.file_digest(stream, lambda: digest)
    return digest.hexdigest()


def _check_is_saved_model(path: pathlib.Path) -> None:
    if (path / "saved_model.pb").is_file():
        return
    inside = path / "saved_model"
    advice = f" Did you mean {inside}?" if (inside / "saved_model.pb").is_file() else ""
    raise ArgumentError(
        "saved_model must be the folder of a SavedModel, with saved_model.pb in it, but got "
        f"{path}.{advice}"
    )


def _described(function: Any, path: pathlib.Path) -> tuple[str, int]:
    """Return the name of the signature's input, and the size of an embedding."""
    if function is not None:
        inputs = function.structured_input_signature[1]
        output = function.structured_outputs.get("embeddings")
        takes_files = [(spec.dtype, spec.shape.rank) for spec in inputs.values()] == [
            (tf.string, 1)
        ]
        if takes_files and output is not None and output.shape.rank == 2 and output.shape[1]:
            return next(iter(inputs)), output.shape[1]
    raise ArgumentError(
        f"saved_model must have a signature {_SIGNATURE} from the bytes of image files (strings "
        f"[n]) to `embeddings` [n, d], but got {path}. keras-dml run and keras_dml.export write "
        "such a signature."
    )
