"""Data about the images of an index: class, folder, and the columns of a CSV file.

The data is stored by path in a separate file, so it stays when images are added or removed.
"""

from __future__ import annotations

import collections
import difflib
import os
import pathlib
import posixpath
import unicodedata
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from experiments.evaluation.checked_json import checked_text, read_checked
from experiments.options.errors import UsageError
from experiments.searching.answer import folder_of
from experiments.searching.csv_table import read_csv

__all__ = ["CLASS", "COLUMNS", "FOLDER", "Columns", "Where", "import_csv", "read_columns"]

COLUMNS = "columns.json"
CLASS, FOLDER = "class", "folder"
Where: TypeAlias = Sequence[tuple[str, str]]
# Names in a message, and values that are compared.
_NAMED, _COMPARED = 20, 2000


class StoredColumns(NamedTuple):
    """Column names, the name of the class column or None, and the values of each path."""

    names: list[str]
    class_column: str | None
    rows: dict[str, list[str]]


def import_csv(
    folder: pathlib.Path,
    path: pathlib.Path,
    class_column: str | None,
    images: pathlib.Path,
    paths: Collection[str],
) -> list[str]:
    """Store the columns of a CSV file in an index folder. They replace earlier columns.

    Rows of unknown paths are stored too, because the images can be added later.

    Args:
        folder: the index folder.
        path: the CSV file, as in `read_csv`. Its paths are relative to the images' folder, or
            absolute.
        class_column: the column with the class. None means `class`, if it exists.
        images: the images' folder.
        paths: the paths of the images.

    Returns:
        Lines to print: the number of images with a row, and unknown paths and images without a row.

    Raises:
        UsageError: if the file is invalid, no path is an image, or a column name is not allowed.
    """
    from keras_dml._files.atomic import replacing  # imports Keras

    table = read_csv(path, _normal(images, paths))
    if FOLDER in table.columns:
        raise UsageError(f"{path} has a column {FOLDER!r}, which every index has: rename it")
    if class_column is not None and class_column not in table.columns:
        raise UsageError(
            f"class_column must be one of {_named(table.columns)}. "
            f"Received: class_column={class_column}"
        )
    if class_column not in (None, CLASS) and CLASS in table.columns:
        raise UsageError(
            f"{path} has a column {CLASS!r} itself: leave out class_column, or rename the "
            f"column. Received: class_column={class_column}"
        )
    known = set(paths)
    unknown = [name for name in table.rows if name not in known]
    if len(unknown) == len(table.rows):
        raise UsageError(
            f"none of the {len(unknown):,} paths in {path} is an image in {images}. The "
            f"first: {unknown[0]}; an image's: {next(iter(paths))}"
        )
    stored = StoredColumns(table.columns, class_column, table.rows)
    with replacing(folder / COLUMNS) as temporary:
        temporary.write_text(checked_text(stored._asdict()))
    missing = [name for name in paths if name not in table.rows]
    lines = [
        f"columns: {_named(table.columns)}, of {len(known) - len(missing):,} of {len(known):,} "
        "images"
    ]
    if unknown:
        lines.append(f"{len(unknown):,} paths in {path} are not images: {_named(unknown, 5)}")
    if missing:
        lines.append(f"{len(missing):,} images have no row in {path}: {_named(missing, 5)}")
    if table.again:
        lines.append(f"{table.again:,} duplicate rows in {path} are ignored")
    if table.unnamed:
        lines.append(f"{table.unnamed:,} columns of {path} have no name and are left out")
    return lines


def _normal(images: pathlib.Path, paths: Collection[str]) -> Callable[[str], str]:
    """Return a function that maps a path in a CSV file to the path of an image."""
    known = set(paths)
    composed = {_composed(name): name for name in paths}

    def normal(text: str) -> str:
        if text in known:
            return text
        name = text.replace("\\", "/")
        if os.path.isabs(name) and name.startswith(f"{images}/"):
            name = name.removeprefix(f"{images}/")
        name = posixpath.normpath(name)
        return composed.get(_composed(name), name)

    return normal


def _composed(text: str) -> str:
    """Compose accents. File names on some systems have them as separate characters."""
    return unicodedata.normalize("NFC", text)


def read_columns(folder: pathlib.Path, paths: Sequence[str]) -> Columns:
    """Read the columns of the images of an index.

    Args:
        folder: the index folder.
        paths: the paths of the images, in the order of the index.

    Raises:
        UsageError: if the file is damaged.
    """
    if not (folder / COLUMNS).exists():
        return Columns(paths)
    try:
        stored = StoredColumns(**(read_checked(folder / COLUMNS) or {}))
        if not all(len(row) == len(stored.names) for row in stored.rows.values()):
            raise ValueError("a row of another length")
        return Columns(paths, stored)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise UsageError(
            f"{folder / COLUMNS} is damaged: python -m experiments.index with its --columns writes "
            "it again, and an index without that file has no columns"
        ) from error


class Columns:
    """Class, folder, and other columns of the images of an index.

    The class is the folder unless a column has it. A folder can be shortened to the end of its
    path: "Milk" also matches "Packages/Milk" if no folder is named "Milk".

    Args:
        paths: the paths of the images.
        stored: other columns, or None. Missing values are "".
    """

    def __init__(self, paths: Sequence[str], stored: StoredColumns | None = None) -> None:
        names, class_column, rows = stored or StoredColumns([], None, {})
        nothing = [""] * len(names)
        known = [rows.get(path, nothing) for path in paths]
        own = {name: [row[place] for row in known] for place, name in enumerate(names)}
        folders = [folder_of(path) for path in paths]
        said = own.pop(CLASS, folders) if class_column in (None, CLASS) else own[class_column]
        classes = [name or folder for name, folder in zip(said, folders)]
        self._values = {CLASS: classes, FOLDER: folders, **own}
        self._codes: dict[str, tuple[dict[str, int], npt.NDArray[np.int64]]] = {}

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
        values, codes = self._coded(name)
        times = np.bincount(codes, minlength=len(values)).tolist()
        counted: collections.Counter[str] = collections.Counter()
        for value, count in zip(values, times):
            for whole in _above(value) if name == FOLDER else [value]:
                counted[whole] += count
        del counted[""]
        return sorted(counted.items(), key=lambda pair: (-pair[1], pair[0]))

    def parsed(self, text: str, separator: str, where: str) -> tuple[str, str]:
        """Split a condition such as "class=Milk" into column and value.

        Args:
            text: the condition.
            separator: the separator.
            where: the name of the argument, for messages.

        Raises:
            UsageError: if the separator or the column is missing.
        """
        # A column name can contain the separator. The longest name wins.
        fits = [name for name in self._values if text.startswith(f"{name}{separator}")]
        if fits:
            name = max(fits, key=len)
            return name, text[len(name) + len(separator) :].strip()
        name, found, _ = text.partition(separator)
        if not found:
            raise UsageError(
                f"{where} must be COLUMN{separator}VALUE, with a column of {self._listed()}. "
                f"Received: {where}={_short(text)}"
            )
        raise UsageError(
            f"the index has no column {_short(name)!r}: it has {self._listed()}. "
            f"Received: {where}={_short(text)}"
        )

    def mask(self, where: Where) -> npt.NDArray[np.bool_] | None:
        """Return which images meet all conditions, bool `[n]`, or None without conditions.

        Several values of one column are alternatives.

        Raises:
            UsageError: if a column does not exist, or no image has a value.
        """
        asked: dict[str, npt.NDArray[np.bool_]] = {}
        for name, value in where:
            if name not in self._values:
                raise UsageError(f"the index has no column {_short(name)!r}: {self._listed()}")
            found = self._having(name, value)
            asked[name] = asked[name] | found if name in asked else found
        return np.logical_and.reduce(list(asked.values())) if asked else None

    def values_asked(self, where: Where) -> dict[str, list[str]]:
        """Return the matching values of each column in the conditions, for a store.

        Raises:
            UsageError: as `mask`.
        """
        asked: dict[str, list[str]] = {}
        for name, value in where:
            values = list(self._coded(name)[0])
            asked.setdefault(name, []).extend(values[code] for code in self._matched(name, value))
        return {name: sorted(set(values)) for name, values in asked.items()}

    def _having(self, name: str, value: str) -> npt.NDArray[np.bool_]:
        return np.isin(self._coded(name)[1], self._matched(name, value))

    def _matched(self, name: str, value: str) -> list[int]:
        """Return the codes of the values in a column that a value in a condition means."""
        values, _ = self._coded(name)
        wanted = _composed(value)
        if name == FOLDER:
            wanted = wanted.strip("/")
        matched = [code for one, code in values.items() if wanted in _alike(name, one)]
        if not matched and wanted and name in (CLASS, FOLDER):
            end = f"/{wanted}"
            matched = [
                code
                for one, code in values.items()
                if any(whole.endswith(end) for whole in _alike(name, one))
            ]
        if not matched:
            near = _nearest(wanted, [one for one, _ in self.counts(name)])
            hint = f"; the nearest: {', '.join(map(_short, near))}" if near else ""
            raise UsageError(f"no image has {name}={_short(value)}{hint}")
        return matched

    def _coded(self, name: str) -> tuple[dict[str, int], npt.NDArray[np.int64]]:
        """Return the codes of the values in a column, and the code of each image."""
        if name not in self._codes:
            values: dict[str, int] = {}
            codes = [values.setdefault(value, len(values)) for value in self._values[name]]
            self._codes[name] = values, np.array(codes, np.int64)
        return self._codes[name]

    def _listed(self) -> str:
        return _named(self.names)


def _above(folder: str) -> list[str]:
    """Return a folder's path and the paths of its parents."""
    parts = folder.split("/")
    return ["/".join(parts[: place + 1]) for place in range(len(parts))]


def _alike(name: str, value: str) -> list[str]:
    """Return the values by which a condition finds a value."""
    return [_composed(whole) for whole in (_above(value) if name == FOLDER else [value])]


def _nearest(wanted: str, values: Sequence[str]) -> list[str]:
    """Return up to three similar values."""
    few = values[:_COMPARED]
    folded = {_folded(value): value for value in reversed(few)}
    # Compare the value, and the last part of a path.
    folded |= {_folded(value.rpartition("/")[2]): value for value in reversed(few)}
    asked = _folded(wanted)[:_COMPARED]
    inside = [value for text, value in folded.items() if asked and asked in text]
    near = [folded[text] for text in difflib.get_close_matches(asked, folded, n=3, cutoff=0.5)]
    return list(dict.fromkeys([*sorted(inside, key=len), *near]))[:3]


def _folded(text: str) -> str:
    return _composed(text).casefold().replace("_", " ").replace("-", " ")[:200]


def _named(names: Collection[str], most: int = _NAMED) -> str:
    shown = [_short(name) for name, _ in zip(names, range(most))]
    return ", ".join(shown) + ("" if len(names) <= most else ", …")


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:100]}…"
