"""SavedModels from image files to embeddings. Needs TensorFlow."""

import hashlib
import importlib
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from experiments.options.errors import UsageError
from keras_dml._common.errors import ArgumentError
from keras_dml._common.extras import needing
from keras_dml._files.checksums import check_saved_model
from keras_dml.retrieval.scann_import import import_operations
from pipelines import ImageTable, find_bad_images

_SIGNATURE = "serving_default"
# Names of the operations of a tokenizer, which no name of a layer, such as Tokenizer, matches.
_OF_TEXTS = re.compile(rb"TFText>|TokenizeWithOffsets|TokenizeOp")
# Operations on image files, such as DecodeImage and DecodeAndCropJpeg.
_DECODES = re.compile(rb"Decode(?!Base64|CSV|JSON|Proto|Compressed)")


# Errors of a graph that cannot decode an image. UnicodeDecodeError: the message contains bytes of
# the file. CancelledError: another image of the batch was cancelled first.
_OF_BAD_IMAGES = (tf.errors.InvalidArgumentError, tf.errors.CancelledError, UnicodeDecodeError)


class ImageEmbedder:
    """A SavedModel from the bytes of image files to embeddings. It is thread-safe.

    Args:
        path: Folder of a SavedModel whose signature `serving_default` maps strings `[n]` (the bytes
            of image files) to `embeddings`, `[n, d]`. `keras_dml.export` writes such a model.

    Attributes:
        dimensions: d.
        takes_text: Whether the strings are texts: the graph decodes no images, or has a tokenizer.

    Raises:
        UsageError: The folder is not a SavedModel, or it has another signature.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        path = pathlib.Path(path)
        _check_is_saved_model(path)
        try:
            check_saved_model(path)
        except ArgumentError as error:
            raise UsageError(
                f"saved_model must have its exported files, but got {path}, which is damaged. Copy "
                f"or export it again. {error}"
            ) from error
        try:
            # A model that contains an index needs the operations of ScaNN.
            graph = (path / "saved_model.pb").read_bytes()
            if b"Scann>" in graph:
                import_operations()
            if _OF_TEXTS.search(graph):
                with needing("hub", "a SavedModel of texts"):
                    importlib.import_module("tensorflow_text")
            self.takes_text = not _DECODES.search(graph) or bool(_OF_TEXTS.search(graph))
            # Stored, because it owns the variables.
            self._model = tf.saved_model.load(str(path))
        # RuntimeError: an operation is not registered.
        except (OSError, ImportError, ValueError, RuntimeError, tf.errors.OpError) as error:
            raise UsageError(f"saved_model cannot be loaded from {path}: {error}") from error
        self._function = self._model.signatures.get(_SIGNATURE)
        self._input, self.dimensions = _described(self._function, path)

    def __call__(self, encoded: Sequence[bytes]) -> tuple[np.ndarray, dict[int, str]]:
        """Embed images, and report the images that cannot be embedded.

        Args:
            encoded: Contents of n image files, at least one.

        Returns:
            `(embeddings, bad)`: float32 `[n, dimensions]` with zeros for a bad image, and index of
            a bad image -> the reason, one line.
        """
        embeddings = np.zeros((len(encoded), self.dimensions), np.float32)
        bad: dict[int, str] = {}
        self._fill(embeddings, bad, encoded, 0)
        for row in np.flatnonzero(~np.isfinite(embeddings).all(axis=1)):
            bad[int(row)] = "the model gives it an embedding that is not finite"
            embeddings[row] = 0
        return embeddings, bad

    def _fill(
        self, embeddings: np.ndarray, bad: dict[int, str], encoded: Sequence[bytes], start: int
    ) -> None:
        """Embed images into rows from `start` on.

        One bad image fails its whole batch, so that a failed batch is divided in halves.
        """
        try:
            found = self._function(**{self._input: tf.constant(encoded)})["embeddings"]
        except _OF_BAD_IMAGES as error:
            if len(encoded) == 1:
                bad[start] = _reason(encoded[0], error)
                return
            half = len(encoded) // 2
            self._fill(embeddings, bad, encoded[:half], start)
            self._fill(embeddings, bad, encoded[half:], start + half)
        else:
            embeddings[start : start + len(encoded)] = found.numpy()


def fingerprint(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a SavedModel's files in hexadecimal digits.

    Raises:
        UsageError: The folder is not a SavedModel.
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


def file_sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _check_is_saved_model(path: pathlib.Path) -> None:
    if (path / "saved_model.pb").is_file():
        return
    inside = path / "saved_model"
    advice = f" Did you mean {inside}?" if (inside / "saved_model.pb").is_file() else ""
    raise UsageError(
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
    raise UsageError(
        f"saved_model must have a signature {_SIGNATURE} from the bytes of image files (strings "
        f"[n]) to `embeddings` [n, d], but got {path}. keras-dml run and keras_dml.export write "
        "such a signature."
    )


def _reason(encoded: bytes, error: tf.errors.OpError | UnicodeDecodeError) -> str:
    """Return the reason of the pipelines' decoder, or else the message of the model."""
    table = ImageTable.from_encoded([encoded], [0])
    for _, _, reason in find_bad_images(table):
        return reason
    message = error.message if isinstance(error, tf.errors.OpError) else ""
    return next(iter(message.strip().splitlines()), "the model refuses it")
