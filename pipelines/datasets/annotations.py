"""Annotation files of published datasets: tables of columns, and the images that they list."""

import os
from collections.abc import Iterable, Sequence

import numpy as np

from keras_dml._common.errors import ArgumentError
from pipelines.text_files import text_bytes

# Most characters of a line in a message. A damaged file can be one line of megabytes.
_SHOWN = 200


def read_table(
    path: str,
    columns: dict,
    counted: bool = False,
    header: bool = False,
    separator: str | None = None,
) -> dict:
    """Read lines of columns. Empty lines are ignored.

    Args:
        path: Path of a UTF-8 file. A byte-order mark is ignored.
        columns: Name of each column, and the function that converts its word (`np.int64`, `str`,
            ...) or raises ValueError or OverflowError. The last column takes the rest of the line.
        counted: Whether the first line is the number of lines after the header.
        header: Whether the names of the columns precede the lines.
        separator: Separator of the columns. None: blanks.

    Returns:
        First column -> tuple of the other columns, in the order of the lines.

    Raises:
        ValueError: A line is invalid (the message names file and line), a first column appears
            twice, the file is empty, or its number of lines is not the announced one.
    """
    form = (separator or " ").join(columns)
    found = text_bytes(path).split(b"\n")
    lines = [(number, line) for number, line in enumerate(found, start=1) if line.strip()]
    promised = None
    if counted and lines:
        promised = _parse(path, *lines.pop(0), {"number of images": np.int64}, None)[0]
    if header and lines:
        number, line = lines.pop(0)
        names = line.decode("utf-8", "replace").split(separator)
        if [name.strip() for name in names] != form.split(separator):
            raise _wrong_line(path, number, line, f"the columns' names '{form}'")
    rows = {}
    for number, line in lines:
        key, *values = _parse(path, number, line, columns, separator)
        if key in rows:
            name = next(iter(columns))
            raise ArgumentError(f"{path}, line {number}: duplicate {name} {_shortened(key)}")
        rows[key] = tuple(values)
    if not rows:
        raise ArgumentError(f"{path} must have lines '{form}', but got an empty file.")
    if promised not in (None, len(rows)):
        raise ArgumentError(
            f"{path} must list {promised} images, the number in its first line, but got "
            f"{len(rows)}. It may be cut off."
        )
    return rows


def check_images(folder: str, paths: Iterable[str], listed_in: str) -> None:
    """Check that all listed images are in a folder.

    Lists can come from untrusted sources, so paths that lead out of the folder are errors. Links in
    the folder are followed, because the user has created them.

    Args:
        folder: Folder that contains the paths.
        paths: Relative paths of the images.
        listed_in: Name of the list, for the message.

    Raises:
        ValueError: Images are missing or outside of the folder. The message has their number and
            the first five.
    """
    # List each folder only once, because network disks are slow.
    present: dict[str, set[str]] = {}
    missing = []
    paths = list(paths)
    outside = [path for path in paths if leads_out(path)]
    if outside:
        raise ArgumentError(
            f"Images listed in {listed_in} must be inside {folder}, but got {len(outside)} outside "
            f"it. The first: {first(outside)}"
        )
    for path in paths:
        parent, name = os.path.split(os.path.join(folder, path))
        if parent not in present:
            present[parent] = set(os.listdir(parent)) if os.path.isdir(parent) else set()
        if name not in present[parent]:
            missing.append(path)
    if missing:
        raise ArgumentError(
            f"{len(missing)} images listed in {listed_in} are not in {folder}. "
            f"The first: {first(missing)}"
        )


def leads_out(path: str) -> bool:
    """Return whether a path leads out of the folder that it is relative to."""
    inner = os.path.normpath(path)
    return os.path.isabs(path) or inner.split(os.sep)[0] == os.pardir or "\0" in path


def first(items: Sequence[object]) -> str:
    """Return the first five items as text for a message."""
    return ", ".join(_shortened(item) for item in items[:5])


def _shortened(item: object) -> str:
    text = str(item)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def _parse(path: str, number: int, line: bytes, columns: dict, separator: str | None) -> list:
    try:
        words = line.decode("utf-8").split(separator, maxsplit=len(columns) - 1)
        return [kind(word.strip()) for word, kind in zip(words, columns.values(), strict=True)]
    except (OverflowError, ValueError) as error:
        form = (separator or " ").join(columns)
        raise _wrong_line(path, number, line, f"'{form}'") from error


def _wrong_line(path: str, number: int, line: bytes, expected: str) -> ValueError:
    return ArgumentError(
        f"{path}, line {number} must be {expected}, but got "
        f"{_shortened(repr(line.decode('utf-8', 'replace').strip()))}."
    )
