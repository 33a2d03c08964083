"""`python -m experiments.preview --flagfile=RECIPE.flags`: a picture of the training images."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

from experiments.options import (
    RunOptions,
    UsageError,
    option,
    parse,
    run_command,
)

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from pipelines import EvaluationTransform, ImageTable, TrainTransform

_PREVIEW = "Preview"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreviewOptions(RunOptions):
    """Options of the command: the flags of a run, and the size of the sheet.

    Attributes:
        output: PNG file. Default: RECIPE-preview.png.
        rows: Number of images, one per row, over all classes.
        crops: Number of augmented crops in a row.
    """

    group = _PREVIEW

    command = "experiments.preview"
    intro = """A contact sheet of a recipe's images.

  python -m experiments.preview --flagfile=RECIPE.flags --data_dir=FOLDER [--flag=value ...]

Each row is a training image: first as an evaluation crops it, then as the training augments it.
The command has all flags of experiments.run, so you can preview any of its command lines.
"""

    output: str | None = option(None)
    rows: int = option(8, lower_bound=1, former="images")
    crops: int = option(7, lower_bound=1)


_TILE = 160  # pixels
_GAP = 8
_TEXT = 18


def main(argv: list[str]) -> None:
    """Load the data, apply both transforms, write one picture."""
    options = parse(PreviewOptions, argv)
    output = options.output or f"{options.name}-preview.png"
    from experiments.evaluation.query_order import choose_queries
    from experiments.options import data
    from pipelines import find_bad_images

    table = data.load(options).train
    augmentation = data.training_transform(options)
    evaluation = data.evaluation_transform(options)
    table = table.select(choose_queries(table.labels, options.rows, seed=options.seed))
    bad = find_bad_images(table, max_pixels=options.max_pixels)
    if bad:
        raise UsageError(data.not_an_image("training", table, bad))
    images = _images(table, augmentation, evaluation, options.crops, options.seed)
    _write(_draw(images, table), output)
    print(
        f"{output}: {len(table)} images, once as evaluated and {options.crops} times as trained on"
    )


class _EveryRow:
    """A sampler with the whole table in each batch."""

    def __init__(self, table: ImageTable) -> None:
        self.batch_size = len(table)

    def __call__(self, step: int) -> np.ndarray:
        import numpy as np

        return np.arange(self.batch_size)


def _images(
    table: ImageTable,
    augmentation: TrainTransform,
    evaluation: EvaluationTransform,
    columns: int,
    seed: int,
) -> np.ndarray:
    """Return uint8 [rows, 1 + columns, size, size, 3]: the evaluation's crop, then the others."""
    import numpy as np

    from pipelines import evaluation_batches, training_batches

    whole = evaluation_batches(table, evaluation, len(table))
    crops = training_batches(table, _EveryRow(table), augmentation, seed, num_steps=columns)
    parts = [*whole, *(images for images, _ in crops)]
    return np.stack([part.numpy() for part in parts], axis=1).round().astype("uint8")


def _draw(images: np.ndarray, table: ImageTable) -> Image.Image:
    from PIL import Image, ImageDraw, ImageFont

    rows, columns, size = images.shape[:3]
    tile = size * (_TILE // size) if size < _TILE else _TILE
    font = ImageFont.load_default(12)
    width, height = tile + _GAP, tile + _TEXT + _GAP
    sheet = Image.new(
        "RGB", (_GAP + columns * width + _GAP, _TEXT + rows * height + _GAP), "gainsboro"
    )
    draw = ImageDraw.Draw(sheet)
    # A gap separates the evaluation's column.
    left = [_GAP + column * width + (_GAP if column else 0) for column in range(columns)]
    draw.text((left[0], 2), "evaluation", "black", font)
    draw.text((left[1], 2), "training", "black", font)
    for row in range(rows):
        top = _TEXT + row * height
        for column in range(columns):
            picture = Image.fromarray(images[row, column])
            method = Image.Resampling.NEAREST if size < tile else Image.Resampling.LANCZOS
            sheet.paste(picture.resize((tile, tile), method), (left[column], top))
        draw.text((left[0], top + tile + 1), table.class_names[table.labels[row]], "black", font)
    return sheet


def _write(sheet: Image.Image, output: str) -> None:
    from keras_dml._files.atomic import replacing

    with replacing(output) as unfinished:
        sheet.save(unfinished, "PNG", optimize=True)


if __name__ == "__main__":
    sys.exit(run_command(main))
