"""Test embeddings for TensorBoard's projector, with their classes and small pictures."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from PIL import Image

from experiments.report.embedding_map import map_rows
from experiments.report.neighbors import EmbeddedTable, pictures_of
from keras_dml._files.atomic import replacing
from pipelines.visible import visible

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
    folder: pathlib.Path, test: EmbeddedTable, transform: Callable[..., tf.Tensor]
) -> None:
    """Write what `tensorboard --logdir` shows under Projector: at most a thousand test images.

    Args:
        folder: the run's events are in it; made where it is not there.
        test: images and embeddings.
        transform: evaluation transform, for the pictures.
    """
    rows = map_rows(len(test.table))
    if len(rows) < 2:  # one image has no neighbors, and a table of one column another form
        return
    folder.mkdir(parents=True, exist_ok=True)
    names = [test.table.class_names[label] for label in test.table.labels[rows]]
    with replacing(folder / "embeddings.tsv") as path:
        np.savetxt(path, np.asarray(test.embeddings[rows]), fmt="%.6g", delimiter="\t")
    with replacing(folder / "classes.tsv") as path:
        lines = [" ".join(visible(name).split()) or "?" for name in names]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="replace")
    with replacing(folder / "pictures.png") as path, open(path, "wb") as stream:
        _sprite(pictures_of(test.table.select(rows), transform)).save(stream, "PNG")
    # Last: without it the others are not looked at.
    with replacing(folder / "projector_config.pbtxt") as path:
        path.write_text(_CONFIG.format(side=_SIDE))


def _sprite(pictures: npt.NDArray[np.uint8]) -> Image.Image:
    """A square of small pictures, row by row, as the projector cuts it."""
    width = math.ceil(math.sqrt(len(pictures)))
    sheet = Image.new("RGB", (width * _SIDE, width * _SIDE), "white")
    for number, picture in enumerate(pictures):
        image = Image.fromarray(picture)
        image.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
        line, column = divmod(number, width)
        sheet.paste(image, (column * _SIDE, line * _SIDE))
    return sheet
