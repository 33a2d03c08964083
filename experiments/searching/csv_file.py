"""Read a CSV file with one row per path. Detects encoding and separator."""

from __future__ import annotations

import csv
import io
import pathlib
from collections.abc import Callable
from typing import NamedTuple

from experiments.options.errors import UsageError

_SEPARATORS = (",", ";", "\t", "|")
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
SHOWN = 100  # characters of a value in a message


class CsvTable(NamedTuple):
    """The rows of a CSV file.

    Attributes:
        columns: The column names, without the column of paths.
        rows: The values of each path.
        repeated: The number of repeated rows.
    """

    columns: list[str]
    rows: dict[str, list[str]]
    repeated: int


def read_csv(path: pathlib.Path, normal: Callable[[str], str] = str) -> CsvTable:
    """Read a CSV file with one row per path.

    The encoding is UTF-8, or UTF-16 with a byte order mark. The separator is a comma, semicolon,
    tab, or bar. The paths are in the column `path`, or else in the first column with a name.
    Columns without a name, blanks around values, and empty lines are ignored.

    Args:
        path: The file.
        normal: A function that normalizes a path.

    Raises:
        UsageError: The file is missing or invalid. The message names file and line.
    """
    records = _records(path, _text(path))
    _, names = records[0] if records else (0, [])
    named = [name for name in names if name]
    if len(named) < 2 or len(set(named)) < len(named):
        raise UsageError(
            f"{path} must start with a line of different names: a column of paths, and other "
            f"columns, but got {short(', '.join(named)) or 'nothing'}."
        )
    of_path = next((row for row, name in enumerate(names) if name.casefold() == "path"), None)
    of_path = names.index(named[0]) if of_path is None else of_path
    places = [place for place, name in enumerate(names) if name and place != of_path]
    rows: dict[str, list[str]] = {}
    line_of: dict[str, int] = {}
    repeated = 0
    for line, record in records[1:]:
        values = record[: len(names)]
        if len(values) < len(names) or any(record[len(names) :]):
            raise UsageError(
                f"{path}, line {line}: {len(record)} values for {len(names)} columns "
                f"({short(', '.join(names))})"
            )
        if not values[of_path]:
            raise UsageError(f"{path}, line {line}: no path in the column {names[of_path]}")
        key, own = normal(values[of_path]), [values[place] for place in places]
        if rows.setdefault(key, own) != own:
            raise UsageError(
                f"{path}, line {line}: {short(key)} has other values than in line {line_of[key]}"
            )
        repeated += key in line_of
        line_of.setdefault(key, line)
    if not rows:
        raise UsageError(f"{path} has no rows: expected a line of names, then one for each path")
    return CsvTable([names[place] for place in places], rows, repeated)


def _text(path: pathlib.Path) -> str:
    if not path.is_file():
        raise UsageError(f"columns must be a CSV file, but got {path}.")
    data = path.read_bytes()
    where = ""
    try:
        text = data.decode("utf-16" if data.startswith(_UTF_16) else "utf-8-sig")
    except UnicodeDecodeError as error:
        text = "\0"
        line = data.count(b"\n", 0, error.start) + 1
        where = f", which has another encoding in line {line}"
    if "\0" in text.partition("\n")[0]:
        raise UsageError(
            "columns must be a CSV file in UTF-8, or in UTF-16 with a byte order mark, but got "
            f'{path}{where}. Spreadsheets save such a file as "CSV UTF-8".'
        )
    return text


def _records(path: pathlib.Path, text: str) -> list[tuple[int, list[str]]]:
    """Return the line number and the values of each record that is not empty."""
    separator = max(_SEPARATORS, key=next(iter(text.splitlines()), "").count)
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=separator, strict=True, skipinitialspace=True
    )
    try:
        records = [(reader.line_num, [*map(str.strip, record)]) for record in reader]
    except csv.Error as error:
        raise UsageError(f"{path}, line {reader.line_num}: no CSV ({error})") from error
    return [(line, record) for line, record in records if any(record)]


def short(text: str) -> str:
    """Shorten a text for a message."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
