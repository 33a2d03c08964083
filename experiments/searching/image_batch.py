"""From image files to embeddings, with reasons for bad images."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from experiments.evaluation.pictures import checked_picture
from experiments.evaluation.saved_model import ImageEmbedder

__all__ = ["embed_batch", "read_image", "unusable_name"]


def read_image(
    read: Callable[[], bytes], max_pixels: int, check_folder: Callable[[], None]
) -> bytes | str:
    """Read an image file.

    Args:
        read: a function that returns the contents.
        max_pixels: the largest number of pixels of an image.
        check_folder: a function that raises an error if the folder has disappeared.

    Returns:
        The contents, or the reason why the image is bad.
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
    """Embed a batch.

    Args:
        embedder: the model.
        read: the results of `read_image`.

    Returns:
        The embeddings, with zeros for bad images, and the reasons of bad images by place.
    """
    contents = list(read)
    reasons = {place: each for place, each in enumerate(contents) if isinstance(each, str)}
    images = {place: each for place, each in enumerate(contents) if isinstance(each, bytes)}
    places = list(images)
    rows = np.zeros((len(contents), embedder.dimensions), np.float32)
    if places:
        rows[places], refused = embedder(list(images.values()))
        reasons |= {places[row]: reason for row, reason in refused.items()}
    return rows, reasons


def unusable_name(path: str) -> str | None:
    """Return why a name cannot be stored as text, or None."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    return None
