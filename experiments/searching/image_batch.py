"""From image files to embeddings, with reasons for bad images."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from experiments.embedding.saved_model import ImageEmbedder
from experiments.report.pictures import checked_picture

__all__ = ["NO_EMBEDDING", "embed_batch", "read_image", "unusable_name"]

# Marks the row of a bad image. A model's embedding never has this value.
NO_EMBEDDING = np.finfo(np.float32).max


def read_image(
    read: Callable[[], bytes], max_pixels: int, check_folder: Callable[[], None]
) -> bytes | str:
    """Return a file's bytes, or as text the reason why it cannot be used.

    Args:
        read: gives the bytes.
        max_pixels: how many pixels an image may have.
        check_folder: called if the file cannot be read; raises if its whole folder is gone.
    """
    try:
        encoded = read()
    except OSError as error:
        check_folder()
        return str(error.strerror or error)
    try:
        return checked_picture(encoded, max_pixels) if encoded else "the file is empty"
    except ValueError as error:
        return str(error)


def embed_batch(
    embedder: ImageEmbedder, read: Iterable[bytes | str]
) -> tuple[np.ndarray, dict[int, str]]:
    """Rows for a batch, `NO_EMBEDDING` for the bad ones, whose reasons come in a dict by place.

    Args:
        embedder: the model.
        read: what `read_image` gives for each.
    """
    images: dict[int, bytes] = {}
    reasons: dict[int, str] = {}
    for place, contents in enumerate(read):
        if isinstance(contents, str):
            reasons[place] = contents
        else:
            images[place] = contents
    places = list(images)
    rows = np.full((len(images) + len(reasons), embedder.dimensions), NO_EMBEDDING, np.float32)
    if places:
        rows[places], refused = embedder(list(images.values()))
        for row, reason in refused.items():
            reasons[places[row]] = reason
            rows[places[row]] = NO_EMBEDDING
    return rows, reasons


def unusable_name(path: str) -> str | None:
    """Why an image's name cannot be kept as text, or None."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    return None
