"""Tables from files, Hugging Face datasets, data frames, and columns."""

import csv
import dataclasses
import io
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_dml._common.errors import ArgumentError, argument_error
from keras_dml._common.extras import needing
from keras_dml._common.regular_files import check_regular, most_content
from pipelines.datasets.annotations import leads_out
from pipelines.table import ImageTable
from pipelines.text_files import text_bytes

IMAGE_COLUMNS = ("image", "images", "path", "file_name", "filename", "file", "embedding")
"""Names of a column with images, in the order of the search."""

LABEL_COLUMNS = ("label", "labels", "class", "class_name", "class_id")
"""Names of a column with classes, in the order of the search."""


def read_table(
    source: Any,
    image: str | None = None,
    label: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    outside_paths: bool = True,
) -> ImageTable:
    """Read a table of images and classes from a file, a dataset, or columns.

    By default, a table can name any file that you can read, with an absolute path or `..`. Set
    `outside_paths=False` for a table from a stranger. The commands do so unless `--outside_paths`
    is on the command line.

    Examples:
        >>> text = "path,label\\na.jpg,cat\\nb.jpg,cat\\nc.jpg,dog\\n"
        >>> with open("animals.csv", "w") as file:
        ...     _ = file.write(text)
        >>> table = read_table("animals.csv")
        >>> table.paths.tolist(), table.class_names
        (['a.jpg', 'b.jpg', 'c.jpg'], ('cat', 'dog'))

    Args:
        source: Path of a `.csv`, `.tsv`, or `.parquet` file (extra `parquet`), or of a folder of
            Parquet files. Or a `datasets.Dataset` of Hugging Face. Or an object with columns: a
            mapping from names to columns, a data frame, or an Arrow table.
        image: Name of the column with images. None: the first column in `IMAGE_COLUMNS`. It
            contains paths, `bytes` of image files, records of `bytes` and `path` (as in Parquet
            files of Hugging Face), or arrays of one shape as in `ImageTable`.
        label: Name of the column with classes, integers or strings. None: the first column in
            `LABEL_COLUMNS`.
        folder: Folder that paths are relative to. None: the folder of the file, or the current
            folder.
        outside_paths: Whether paths can be absolute or lead out of `folder`. Links in the folder
            are always followed.

    Returns:
        `ImageTable`, whose classes are the labels in sorted order. Bytes stay in memory, and paths
        are read when a batch needs them.

    Raises:
        ValueError: The file has another format, a column is missing or has an empty cell, or a path
            leads out of the folder with `outside_paths=False`.
        MissingExtraError: A Parquet file needs pyarrow.
    """
    columns = source
    if isinstance(source, str | os.PathLike):
        path = pathlib.Path(source).expanduser()
        columns, folder = _file_columns(path), path.parent if folder is None else folder
    names = _names(columns)
    image = _column("image", image, IMAGE_COLUMNS, names)
    label = _column("label", label, LABEL_COLUMNS, names)
    features = getattr(columns, "features", None) or {}
    if type(features.get(image)).__name__ == "Image":
        # Return the files. Otherwise, `datasets` decodes all images into memory.
        undecoded = dataclasses.replace(features[image], decode=False)
        columns = columns.cast_column(image, undecoded)
    labels = _values(columns[label])
    _check_complete(label, labels)
    class_names = getattr(features.get(label), "names", None)
    if class_names is not None:
        if min(labels) < 0:
            raise ArgumentError(f"{label} must be a class in every row, but got {min(labels)}.")
        class_names = [class_names[number] for number in sorted(set(labels))]
    elif all(isinstance(value, str) and _is_whole(value) for value in labels):
        labels = [int(value) for value in labels]  # so that 10 comes after 9
    return _table(image, _values(columns[image]), labels, class_names, folder, outside_paths)


def _file_columns(path: pathlib.Path) -> Any:
    """Return the columns of a file."""
    ending = path.suffix.lower()
    if not path.exists():
        raise argument_error("source", "an existing file", str(path))
    if ending in (".csv", ".tsv"):
        return csv_columns(path, "source")
    if ending == ".parquet" or path.is_dir():
        with needing("parquet", "a Parquet file"):
            from pyarrow import parquet
        try:
            _check_parquet(path)
            return parquet.read_table(path)
        except ArgumentError:
            raise
        except (OSError, ValueError, TypeError, NotImplementedError) as error:  # of pyarrow
            raise ArgumentError(
                f"source must be a Parquet file, but got {path} ({error})."
            ) from error
    raise argument_error("source", "a .csv, .tsv, or .parquet file", str(path))


def _check_parquet(path: pathlib.Path) -> None:
    """Check that the content of Parquet files is not compressed too much.

    A row of a few bits can decode to a text of any length, so count the bytes of small batches. The
    batches are not kept, because each one has its own copy of a dictionary of categories. So the
    file is decoded twice, at about the speed at which it is read.
    """
    from pyarrow import dataset, parquet

    if not path.is_dir():
        check_regular(path, sys.maxsize)
    names = dataset.dataset(path, format="parquet").files
    most = left = most_content(sum(map(os.path.getsize, names)))
    for name in names:
        with parquet.ParquetFile(name) as file:
            for batch in file.iter_batches(batch_size=256, use_threads=False):
                # A dictionary of categories is in every batch, and in memory once.
                left -= sum(getattr(each, "indices", each).nbytes for each in batch.columns)
                if left < 0:
                    raise ArgumentError(
                        f"The content of {path} must have at most {most >> 20:,} MB, but got more: "
                        "it is compressed too much. Save it without compression."
                    )


def csv_columns(path: pathlib.Path, argument: str) -> dict[str, list[str]]:
    """Read the columns of a CSV file by name.

    The encoding is UTF-8. The separator is a comma, semicolon, or tab. Blanks around a cell and
    empty lines are ignored.

    Args:
        path: The file. Its first line has the names of the columns.
        argument: Name of the caller's argument, for messages.

    Raises:
        ValueError: The file is missing, has another format, or has two columns of one name.
    """
    if not path.is_file():
        raise argument_error(argument, "an existing CSV file", str(path))
    content = text_bytes(path)
    try:
        text = content.decode("utf-8")
        separators = "\t" if path.suffix.lower() == ".tsv" else ",;\t"
        separator = max(separators, key=text.partition("\n")[0].count)
        reader = csv.reader(io.StringIO(text), delimiter=separator, strict=True)
        lines = [(reader.line_num, [*map(str.strip, cells)]) for cells in reader if cells]
        (_, header), *rows = lines
    except (csv.Error, ValueError) as error:  # also an empty file, and another encoding
        raise ArgumentError(
            f"{argument} must be a CSV file in UTF-8, but got {path} ({error})."
        ) from error
    if len(set(header)) < len(header):
        names = ", ".join(header)
        raise argument_error(argument, "a CSV file with different names of columns", names)
    for number, cells in rows:
        if len(cells) != len(header):
            raise ArgumentError(
                f"{argument} must have {len(header)} cells in each line, but got {len(cells)} in "
                f"line {number} of {path}."
            )
    return {name: [cells[place] for _, cells in rows] for place, name in enumerate(header)}


def _names(columns: Any) -> list[str]:
    """Return the names of the columns."""
    for attribute in ("column_names", "columns"):
        names = getattr(columns, attribute, None)
        if names is not None and not isinstance(names, Mapping):
            return [str(name) for name in names]
    if isinstance(columns, Mapping):
        return [str(name) for name in columns]
    wanted = "a path, a datasets.Dataset, or an object with columns"
    raise argument_error("source", wanted, columns)


def _column(argument: str, name: str | None, known: Sequence[str], names: Sequence[str]) -> str:
    """Return the name of a column, or raise `ValueError`."""
    found = [each for each in (known if name is None else [name]) if each in names]
    if not found:
        raise argument_error(argument, f"one of the columns {', '.join(names)}", name)
    return found[0]


def _values(column: Any) -> Any:
    """Return a column as a NumPy array, if it is one of several axes, or as a list."""
    if isinstance(column, np.ndarray) and column.ndim > 1:
        return column
    for method in ("to_pylist", "tolist"):  # of Arrow, and of NumPy and pandas
        if hasattr(column, method):
            return getattr(column, method)()
    return list(column)


def _check_complete(name: str, values: Any) -> None:
    empty = [row for row, value in enumerate(values) if value is None or value == ""]
    if empty:
        raise ArgumentError(
            f"{name} must have a value in every row, but got an empty cell in row {empty[0]}."
        )


def _is_whole(text: str) -> bool:
    # Python converts at most 4,300 digits. A longer label stays a text.
    is_short = len(text) <= 1000 and text.isascii() and text.removeprefix("-").isdigit()
    return is_short and str(int(text)) == text


def _table(
    name: str,
    images: Any,
    labels: Any,
    class_names: Sequence[str] | None,
    folder: str | os.PathLike[str] | None,
    outside_paths: bool,
) -> ImageTable:
    if isinstance(images, np.ndarray):
        return ImageTable.from_arrays(images, labels, class_names)
    if images and isinstance(images[0], Mapping):  # records of Hugging Face
        records = [record or {} for record in images]
        images = [record.get("bytes") or record.get("path") for record in records]
    _check_complete(name, [image if isinstance(image, str | None) else "array" for image in images])
    if all(isinstance(image, bytes) for image in images):
        return ImageTable.from_encoded(images, labels, class_names)
    if all(isinstance(image, str | os.PathLike) for image in images):
        outside = [] if outside_paths else list(filter(leads_out, map(os.fspath, images)))
        if outside:
            raise ArgumentError(
                f"{name} must contain paths inside the folder of the table, but got {outside[0]}. "
                "If you trust the table, set outside_paths (--outside_paths on the command line)."
            )
        paths = [os.path.join(folder or "", image) for image in images]
        paths = [os.path.normpath(path) for path in paths]
        return ImageTable.from_paths(paths, labels, class_names)
    try:
        arrays = np.stack([np.asarray(image) for image in images])
    except ValueError as error:
        raise ArgumentError(
            f"{name} must contain arrays of one shape, but got several ({error})."
        ) from error
    return ImageTable.from_arrays(arrays, labels, class_names)
