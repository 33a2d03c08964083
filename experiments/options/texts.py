"""The texts of classes, which photographs are compared with: the catalog of `--texts`."""

from __future__ import annotations

import dataclasses
import pathlib
import textwrap

import matplotlib
import numpy as np
import tensorflow as tf
from PIL import Image, ImageDraw, ImageFont

from experiments.options import RunOptions, UsageError
from keras_dml.models import TextTransform
from pipelines import ImageTable, Split
from pipelines.datasets.annotations import first
from pipelines.read_table import csv_columns

_COLUMNS = ("class", "text")
# Of the picture of a text, in pixels.
_SIDE, _FONT, _CHARACTERS, _LINES = 224, 13, 27, 12


def with_texts(data: Split, path: str) -> Split:
    """Replace the catalogs of a dataset by the texts of the classes.

    Args:
        data: The dataset.
        path: CSV file with the columns `class` and `text`. A class can have several texts. Lines of
            other classes are ignored.

    Raises:
        UsageError: The dataset has a gallery, or the file has other columns, or no text of a class.
        ArgumentError: The file is not a CSV file.
    """
    if data.gallery is not None:
        raise UsageError(f"texts must be unset for a dataset with a gallery, but got {path}.")
    columns = csv_columns(pathlib.Path(path), "texts")
    if not set(_COLUMNS) <= columns.keys():
        raise UsageError(
            f"texts must have the columns {' and '.join(_COLUMNS)}, but got {', '.join(columns)} "
            f"in {path}."
        )
    names, texts = (columns[name] for name in _COLUMNS)
    described = {name for name, text in zip(names, texts) if text}

    def catalog(table: ImageTable) -> ImageTable:
        missing = [name for name in table.class_names if name not in described]
        if missing:
            raise UsageError(
                f"texts must have a text for each class, but got none for {len(missing)} of "
                f"{table.num_classes} classes in {path}. The first: {first(missing)}."
            )
        numbers = {name: number for number, name in enumerate(table.class_names)}
        rows = [row for row, name in enumerate(names) if name in numbers and texts[row]]
        return ImageTable(
            np.array([numbers[names[row]] for row in rows]),
            table.class_names,
            encoded=np.array([texts[row].encode() for row in rows], object),
            coarse_ids=table.coarse_ids,
        )

    return dataclasses.replace(
        data, catalog=catalog(data.test), training_catalog=catalog(data.train)
    )


def text_transform(options: RunOptions) -> TextTransform | None:
    """Return the transform of a run's texts. None if the run has no texts."""
    if options.texts is None:
        return None
    return TextTransform(str(options.candidate_backbone), options.text_length)


def text_picture(text: tf.Tensor) -> tf.Tensor:
    """Return a picture of a text, float32 `[224, 224, 3]`, for a page."""

    def drawn(text: bytes) -> np.ndarray:
        picture = Image.new("RGB", (_SIDE, _SIDE), "white")
        lines = textwrap.wrap(text.decode(), _CHARACTERS, max_lines=_LINES, placeholder=" …")
        # Pillow's own font has only ASCII.
        font = ImageFont.truetype(f"{matplotlib.get_data_path()}/fonts/ttf/DejaVuSans.ttf", _FONT)
        ImageDraw.Draw(picture).multiline_text((8, 8), "\n".join(lines), "black", font)
        return np.asarray(picture, "float32")

    return tf.ensure_shape(tf.numpy_function(drawn, [text], tf.float32), [_SIDE, _SIDE, 3])
