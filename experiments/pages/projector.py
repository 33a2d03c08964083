"""Files of the test embeddings, with classes and small pictures, for TensorBoard's projector."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from PIL import Image

from experiments.evaluation.labeled_embeddings import EmbeddedSet
from experiments.options.visible import visible
from experiments.pages.embedding_map import map_rows
from experiments.pages.retrieval import pictures_of
from keras_dml._files.atomic import replacing

__all__ = ["write_projector"]

_SIDE = 48
_CONFIG = """embeddings {{
  tensor_name: "test embeddings"
  tensor_path: "embeddings.tsv"
  metadata_path: "classes.tsv"
  sprite {{
    image_path: "pictures.png"
    single_image_dim: {side}
    single_image_dim: {side}
  }}
}}
"""


def write_projector(
    folder: pathlib.Path, test: EmbeddedSet, transform: Callable[..., tf.Tensor]
) -> None:
    """Write at most a thousand test images for the Projector tab of `tensorboard --logdir`.

    Args:
        folder: The folder of the run's events. It is created if it is missing.
        test: The images with their embeddings.
        transform: Evaluation transform, for the pictures.
    """
    table = test.table
    rows = map_rows(len(test.labels))
    if table is None or len(rows) < 2:  # one image has no neighbors
        return
    folder.mkdir(parents=True, exist_ok=True)
    names = [table.class_names[label] for label in table.labels[rows]]
    with replacing(folder / "embeddings.tsv") as path:
        np.savetxt(path, np.asarray(test.embeddings[rows]), fmt="%.6g", delimiter="\t")
    with replacing(folder / "classes.tsv") as path:
        lines = [" ".join(visible(name).split()) or "?" for name in names]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="replace")
    with replacing(folder / "pictures.png") as path, open(path, "wb") as stream:
        _sprite(pictures_of(table.select(rows), transform)).save(stream, "PNG")
    # Written last, because TensorBoard ignores the other files without it.
    with replacing(folder / "projector_config.pbtxt") as path:
        path.write_text(_CONFIG.format(side=_SIDE))


def _sprite(pictures: npt.NDArray[np.uint8]) -> Image.Image:
    """Return a square of small pictures, row by row."""
    width = math.ceil(math.sqrt(len(pictures)))
    sheet = Image.new("RGB", (width * _SIDE, width * _SIDE), "white")
    for number, picture in enumerate(pictures):
        image = Image.fromarray(picture)
        image.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
        line, column = divmod(number, width)
        sheet.paste(image, (column * _SIDE, line * _SIDE))
    return sheet
