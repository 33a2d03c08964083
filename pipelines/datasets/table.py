"""A CSV, TSV, or Parquet file with images and classes."""

import os

from keras_dml._common.errors import ArgumentError
from pipelines.read_table import IMAGE_COLUMNS, LABEL_COLUMNS, read_table
from pipelines.split import Split, split_by_class

_EXPECTED = (
    f"a .csv, .tsv, or .parquet file with a column of images ({', '.join(IMAGE_COLUMNS)}) and a "
    f"column of classes ({', '.join(LABEL_COLUMNS)})"
)


def load_split(
    data_dir: str | os.PathLike[str] | None,
    train_classes: int | None = None,
    test_classes: int | None = None,
    split: str = "first_classes",
    seed: int = 0,
) -> Split:
    """A CSV, TSV, or Parquet file as data_dir. By default, the first half of the classes trains.

    See `pipelines.read_table` for its columns.

    Raises:
        ValueError: `data_dir` is not set, or as for `read_table`.
    """
    if not data_dir:
        raise ArgumentError(f"data_dir must be {_EXPECTED}. Received: data_dir={data_dir!r}")
    table = read_table(data_dir)
    return split_by_class(table, train_classes, test_classes, None, split, seed)
