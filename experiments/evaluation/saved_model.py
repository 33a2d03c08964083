"""Embedding of image files by a SavedModel, which leaves out bad images. Needs TensorFlow."""

import os
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_dml.export.load import load_saved_model
from pipelines import ImageTable, find_bad_images

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
        ArgumentError: As for `load_saved_model`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._embed = load_saved_model(path)
        self.takes_text = self._embed.takes_text
        self.dimensions = self._embed.dimensions

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
            found = self._embed(encoded)
        except _OF_BAD_IMAGES as error:
            if len(encoded) == 1:
                bad[start] = _reason(encoded[0], error)
                return
            half = len(encoded) // 2
            self._fill(embeddings, bad, encoded[:half], start)
            self._fill(embeddings, bad, encoded[half:], start + half)
        else:
            embeddings[start : start + len(encoded)] = found


def _reason(encoded: bytes, error: tf.errors.OpError | UnicodeDecodeError) -> str:
    """Return the reason of the pipelines' decoder, or else the message of the model."""
    table = ImageTable.from_encoded([encoded], [0])
    for _, _, reason in find_bad_images(table):
        return reason
    message = error.message if isinstance(error, tf.errors.OpError) else ""
    return next(iter(message.strip().splitlines()), "the model refuses it")
