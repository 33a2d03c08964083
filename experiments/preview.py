"""`python -m experiments.preview --flagfile=RECIPE.flags`: a picture of the training images."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.options import RunOptions, UsageError, option, parse, run_command

if TYPE_CHECKING:
    import numpy as np

    from pipelines import EvaluationTransform, ImageTable, TrainTransform


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreviewOptions(RunOptions):
    """Options of the command: the flags of a run, and the size of the sheet.

    Attributes:
        output: PNG file. Default: RECIPE-preview.png.
        rows: Number of images, one per row, over all classes.
        crops: Number of augmented crops in a row.
    """

    group = "Preview"

    command = "experiments.preview"
    intro = """A contact sheet of a recipe's images.

  keras-dml preview --flagfile=RECIPE.flags --data_dir=FOLDER [--flag=value ...]

Each row is a training image: first as an evaluation crops it, then as the training augments it.
The command has all flags of keras-dml run, so you can preview any of its command lines.
"""

    output: str | None = option(None)
    rows: int = option(8, lower_bound=1)
    crops: int = option(7, lower_bound=1)


def main(argv: list[str]) -> None:
    """Load the data, apply both transforms, write one picture."""
    options = parse(PreviewOptions, argv)
    output = options.output or f"{options.name}-preview.png"
    from experiments.options import data
    from experiments.pages.query_order import choose_queries
    from pipelines import find_bad_images

    table = data.load(options).train
    augmentation = data.training_transform(options)
    evaluation = data.evaluation_transform(options)
    table = table.select(choose_queries(table.labels, options.rows, seed=options.seed))
    bad = find_bad_images(table, max_pixels=options.max_pixels)
    if bad:
        raise UsageError(data.not_an_image("training", table, bad))
    _write(tiles(table, augmentation, evaluation, options.crops, options.seed), table, output)
    print(
        f"{output}: {len(table)} images, once as evaluated and {options.crops} times as trained on"
    )


def tiles(
    table: ImageTable,
    augmentation: TrainTransform,
    evaluation: EvaluationTransform,
    columns: int,
    seed: int,
) -> list[np.ndarray]:
    """Return columns of images, uint8 `[rows, size, size, 3]`: the evaluation's, then the others.

    Training and evaluation can have different sizes.
    """
    from experiments.training.features import view_seeds
    from pipelines import evaluation_batches

    rows = len(table)
    parts = [*evaluation_batches(table, evaluation, rows)]
    for column in range(columns):
        seeds = view_seeds(seed, column, rows)
        parts += evaluation_batches(table, augmentation, rows, None, seeds)
    return [part.numpy().round().astype("uint8") for part in parts]


def _write(images: Sequence[np.ndarray], table: ImageTable, output: str) -> None:
    """Write a sheet with the class name above each row."""
    from matplotlib.figure import Figure

    from keras_dml._files.atomic import replacing

    rows, columns = len(table), len(images)
    sheet = Figure(figsize=(1.8 * columns, 2 * rows), layout="constrained")
    sheet.suptitle("first column: evaluation; others: training")
    for row, places in enumerate(sheet.subplots(rows, columns, squeeze=False)):
        for column, place in enumerate(places):
            place.imshow(images[column][row])
            place.set_axis_off()
        name = table.class_names[table.labels[row]]
        places[0].set_title(name, loc="left", parse_math=False)
    with replacing(output) as unfinished:
        sheet.savefig(unfinished, format="png")


if __name__ == "__main__":
    sys.exit(run_command(main))
