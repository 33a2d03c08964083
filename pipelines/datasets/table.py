"""A CSV, TSV, or Parquet file with images and classes."""

import os
import warnings

from keras_dml._common.errors import argument_error
from pipelines.datasets.files import check_one_class
from pipelines.read_table import IMAGE_COLUMNS, LABEL_COLUMNS, read_table
from pipelines.split import Unsplit

_EXPECTED = (
    f"a .csv, .tsv, or .parquet file with a column of images ({', '.join(IMAGE_COLUMNS)}) and a "
    f"column of classes ({', '.join(LABEL_COLUMNS)})"
)


def load(
    data_dir: str | os.PathLike[str] | None,
    several_classes: bool = False,
    outside_paths: bool = True,
) -> Unsplit:
    """A CSV, TSV, or Parquet file as data_dir. By default, the first half of the classes trains.

    See `pipelines.read_table` for its columns and for `outside_paths`.

    Args:
        data_dir: The file.
        several_classes: Whether an image can have several classes, for texts and tags.

    Raises:
        ValueError: `data_dir` is not set, an image has two classes, or as for `read_table`.
    """
    if not data_dir:
        raise argument_error("data_dir", _EXPECTED, data_dir)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of two classes
        table = read_table(data_dir, outside_paths=outside_paths)
    if table.paths is not None and not several_classes:
        check_one_class(os.fspath(data_dir), table.paths.tolist(), table.labels)
    return Unsplit(table)
