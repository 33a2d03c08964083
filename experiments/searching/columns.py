"""Data about the images of an index: class, folder, and the columns of a CSV file.

The data is stored by path in a separate file, so it stays when images are added or removed.
"""

from __future__ import annotations

import collections
import itertools
import os
import pathlib
import posixpath
import unicodedata
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from experiments.options.errors import UsageError
from experiments.recipes.nearest import did_you_mean
from experiments.searching.answer import folder_of
from experiments.searching.index_folder import read_json_file, write_json_file
from keras_dml._common.errors import ArgumentError
from pipelines.read_table import csv_columns

COLUMNS = "columns.json"
CLASS, FOLDER = "class", "folder"
_FORM = {"names": list[str], "rows": dict[str, list[str]]}
Where: TypeAlias = Sequence[tuple[str, str]]
#: Which images meet the conditions, `[n]`, or None for all images.
Mask: TypeAlias = npt.NDArray[np.bool_] | None
# Names in a message, characters of a name, and values that are compared with a mistyped value.
_NAMED, _SHOWN, _COMPARED = 20, 100, 2000


class StoredColumns(NamedTuple):
    """Column names, and the values of each path."""

    names: list[str]
    rows: dict[str, list[str]]


def import_csv(
    folder: pathlib.Path,
    path: pathlib.Path,
    images: str,
    paths: Collection[str],
) -> list[str]:
    """Store the columns of a CSV file in an index folder. They replace earlier columns.

    Rows of unknown paths are stored too, because the images can be added later.

    Args:
        folder: The index folder.
        path: The CSV file. Its column `path`, or else the first column with a name, has paths
            relative to the images' folder, or absolute paths.
        images: The images' folder.
        paths: The paths of the images.

    Returns:
        Lines to print: the number of images with a row, and unknown paths and images without a row.

    Raises:
        UsageError: A path has several rows, no path is an image, or a column name is not allowed.
        ValueError: As `pipelines.read_table.csv_columns`.
    """
    stored = _read_csv(path, _normal(images, paths))
    known = set(paths)
    unknown = [name for name in stored.rows if name not in known]
    if len(unknown) == len(stored.rows):
        raise UsageError(
            f"none of the {len(unknown):,} paths in {path} is an image in {images}. The first path "
            f"is {_named(unknown, 1)}, and an image has the path {next(iter(paths))}"
        )
    write_json_file(folder, COLUMNS, stored._asdict())
    missing = [name for name in paths if name not in stored.rows]
    found = len(known) - len(missing)
    lines = [f"columns: {_named(stored.names)}, of {found:,} of {len(known):,} images"]
    if unknown:
        lines.append(f"{len(unknown):,} paths in {path} are not images: {_named(unknown, 5)}")
    if missing:
        lines.append(f"{len(missing):,} images have no row in {path}: {_named(missing, 5)}")
    return lines


def _read_csv(path: pathlib.Path, normal: Callable[[str], str]) -> StoredColumns:
    """Read a CSV file with one row for each path. Columns without a name are ignored."""
    columns = {name: values for name, values in csv_columns(path, "columns").items() if name}
    of_path = next((name for name in columns if name.casefold() == "path"), next(iter(columns), ""))
    names = [name for name in columns if name != of_path]
    if not names or FOLDER in names:
        raise UsageError(
            "columns must be a CSV file with a column of paths and other columns, and without a "
            f"column {FOLDER!r}, which every index has, but got {path} with {_named(columns)}."
        )
    paths = [normal(text) for text in columns[of_path]]
    rows = dict(zip(paths, map(list, zip(*(columns[name] for name in names)))))
    if len(rows) < len(paths):
        ((repeated, _),) = collections.Counter(paths).most_common(1)
        raise UsageError(
            f"columns must have one row for each path, but got {path} with several rows for "
            f"{_short(repeated)}."
        )
    return StoredColumns(names, rows)


def _normal(images: str, paths: Collection[str]) -> Callable[[str], str]:
    """Return a function that maps a path in a CSV file to the path of an image."""
    exact, composed = set(paths), {_composed(name): name for name in paths}

    def normal(text: str) -> str:
        name = posixpath.normpath(text.replace("\\", "/"))
        if os.path.isabs(name):
            name = name.removeprefix(f"{images}/")
        return name if name in exact else composed.get(_composed(name), name)

    return normal


def _composed(text: str) -> str:
    """Compose accents. File names on some systems have them as separate characters."""
    return unicodedata.normalize("NFC", text)


def read_columns(folder: pathlib.Path, paths: Sequence[str]) -> Columns:
    """Read the columns of the images of an index.

    Args:
        folder: The index folder.
        paths: The paths of the images, in the order of the index.

    Raises:
        UsageError: The file is damaged.
    """
    if not (folder / COLUMNS).exists():
        return Columns(paths)
    try:
        found = read_json_file(folder, COLUMNS, _FORM)
        stored = StoredColumns(found["names"], found["rows"])
        if any(len(row) != len(stored.names) for row in stored.rows.values()):
            raise ArgumentError(f"{folder / COLUMNS} is damaged: a row has another length")
        return Columns(paths, stored)
    except ArgumentError as error:
        raise UsageError(
            f"{error}. keras-dml index with its --columns writes "
            "it again, and an index without that file has no columns"
        ) from error


class Columns:
    """Class, folder, and other columns of the images of an index.

    The class is the folder unless a column has it. A folder can be shortened to the end of its
    path: "Milk" also matches "Packages/Milk" if no folder is named "Milk".

    Args:
        paths: The paths of the images.
        stored: Other columns, or None. Missing values are "".
    """

    def __init__(self, paths: Sequence[str], stored: StoredColumns | None = None) -> None:
        names, rows = stored or StoredColumns([], {})
        known = [rows.get(path, [""] * len(names)) for path in paths]
        columns = {name: [row[place] for row in known] for place, name in enumerate(names)}
        folders = [folder_of(path) for path in paths]
        classes = [name or folder for name, folder in zip(columns.pop(CLASS, folders), folders)]
        self._values = {CLASS: classes, FOLDER: folders, **columns}
        self._counts = {name: collections.Counter(each) for name, each in self._values.items()}
        self._forms: dict[str, dict[str, list[str]]] = {}

    @property
    def names(self) -> list[str]:
        """All column names: class, folder, and the columns of the CSV file."""
        return list(self._values)

    @property
    def own_names(self) -> list[str]:
        """The column names without class and folder."""
        return [name for name in self._values if name not in (CLASS, FOLDER)]

    def values_of(self, name: str) -> list[str]:
        """Return the value of each image in a column. Missing values are ""."""
        return self._values[name]

    @property
    def class_names(self) -> list[str]:
        """The class of each image. A missing class is ""."""
        return self._values[CLASS]

    def counts(self, name: str) -> list[tuple[str, int]]:
        """Count the values of a column, most frequent first, then by name.

        The count of a folder includes its subfolders.
        """
        counted: collections.Counter[str] = collections.Counter()
        for value, count in self._counts[name].items():
            for each in _with_parents(name, value):
                counted[each] += count
        del counted[""]
        return sorted(counted.items(), key=lambda pair: (-pair[1], pair[0]))

    def parsed(self, text: str, separator: str) -> tuple[str, str]:
        """Split a condition such as "class=Milk" into column and value.

        Raises:
            UsageError: The separator is missing, or the column does not exist.
        """
        # A column name can contain the separator. The longest name wins.
        for name in sorted(self._values, key=len, reverse=True):
            if text.startswith(f"{name}{separator}"):
                return name, text[len(name) + len(separator) :].strip()
        raise UsageError(
            f"where must be COLUMN{separator}VALUE, with a column of {_named(self.names)}, but got "
            f"{_short(text)}."
        )

    def mask(self, where: Where) -> Mask:
        """Return which images meet all conditions, bool `[n]`, or None without conditions.

        Several values of one column are alternatives.

        Raises:
            UsageError: No image has a value.
        """
        masks = [
            np.array([value in asked for value in self._values[name]], bool)
            for name, asked in self.values_asked(where).items()
        ]
        return np.logical_and.reduce(masks) if masks else None

    def values_asked(self, where: Where) -> dict[str, set[str]]:
        """Return the values of each column that meet the conditions.

        Raises:
            UsageError: No image has a value.
        """
        asked: dict[str, set[str]] = {}
        for name, value in where:
            asked.setdefault(name, set()).update(self._matching(name, value))
        return asked

    def _matching(self, name: str, value: str) -> list[str]:
        """Return the values in a column that a value in a condition means."""
        if name not in self._forms:  # composed once, because it takes seconds for many classes
            self._forms[name] = {
                each: [*map(_composed, _with_parents(name, each))] for each in self._counts[name]
            }
        forms = self._forms[name].items()
        wanted = _composed(value.strip("/") if name == FOLDER else value)
        matching = [each for each, found in forms if wanted in found]
        if not matching and wanted and name in (CLASS, FOLDER):
            end = f"/{wanted}"
            matching = [each for each, found in forms if any(one.endswith(end) for one in found)]
        if not matching:
            counts = [each for each, _ in self.counts(name)[:_COMPARED]]
            parts = [*counts, *(each.rpartition("/")[2] for each in counts)]
            hint = did_you_mean(wanted[:_SHOWN], (part[:_SHOWN] for part in parts))
            raise UsageError(f"no image has {name}={_short(value)}.{hint}")
        return matching


def _with_parents(name: str, value: str) -> Iterable[str]:
    """Return a value. For a folder, return its path and the paths of its parents."""
    return itertools.accumulate(value.split("/"), "{}/{}".format) if name == FOLDER else [value]


def _named(names: Collection[str], most: int = _NAMED) -> str:
    shown = [_short(name) for name, _ in zip(names, range(most))]
    return ", ".join(shown) + ("" if len(names) <= most else ", …")


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
