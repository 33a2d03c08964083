"""Read a CSV file with one row per path. Detects encoding and separator."""

from __future__ import annotations

import contextlib
import csv
import itertools
import pathlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from experiments.options.errors import UsageError

__all__ = ["CsvTable", "read_csv"]

_SEPARATORS = (",", ";", "\t", "|")
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_PATH = "path"
_SHOWN = 60  # characters of a value in a message


class CsvTable(NamedTuple):
    """The rows of a CSV file.

    Attributes:
        columns: the column names, without the column of paths.
        rows: the values of each path.
        again: the number of duplicate rows.
        unnamed: the number of ignored columns, which have values and no name.
    """

    columns: list[str]
    rows: dict[str, list[str]]
    again: int
    unnamed: int


def read_csv(path: pathlib.Path, normal: Callable[[str], str] = str) -> CsvTable:
    """Read a CSV file with one row per path.

    The encoding is UTF-8, or UTF-16 with a byte order mark. The separator is a comma, semicolon,
    tab, or bar. The paths are in the column `path`, or else in the first column with a name.
    Blanks around values and empty lines are ignored.

    Args:
        path: the file.
        normal: a function that normalizes a path.

    Raises:
        UsageError: if the file is missing or invalid. The message names file and line.
    """
    if not path.is_file():
        raise UsageError(f"columns must be a CSV file. Received: columns={path}")
    encoding = _encoding(path)
    try:
        records = _records(path, encoding, _separator(path, encoding))
        _, header = next(records, (0, []))
        names = [name.strip() for name in header]
        of_path = _place_of_path(path, names)
        kept = [place for place, name in enumerate(names) if name and place != of_path]
        rows: dict[str, list[str]] = {}
        line_of: dict[str, int] = {}
        again, held = 0, set()
        for line, record in records:
            key, values = _row(path, line, record, names, of_path)
            held |= {place for place, value in enumerate(values) if value and not names[place]}
            key, values = normal(key), [values[place] for place in kept]
            if rows.setdefault(key, values) != values:
                raise UsageError(
                    f"{path}, line {line}: {_shown(key)} has other values than in line "
                    f"{line_of[key]}"
                )
            again += key in line_of
            line_of.setdefault(key, line)
    except UnicodeError as error:
        raise UsageError(_not_text(path, encoding)) from error
    if not rows:
        raise UsageError(f"{path} has no rows: expected a line of names, then one for each path")
    return CsvTable([names[place] for place in kept], rows, again, len(held))


def _encoding(path: pathlib.Path) -> str:
    with open(path, "rb") as file:
        return "utf-16" if file.read(2) in _UTF_16 else "utf-8-sig"


def _separator(path: pathlib.Path, encoding: str) -> str:
    """Return the separator that makes the most columns of the first two lines."""

    def fit(separator: str) -> tuple[bool, int]:
        lengths = []
        with contextlib.suppress(UsageError):  # broken quotes are reported when the file is read
            for _, record in itertools.islice(_records(path, encoding, separator), 2):
                lengths.append(len(record))
        return len(set(lengths)) == 1 and lengths[0] > 1, max(lengths, default=0)

    return max(_SEPARATORS, key=fit)


def _records(path: pathlib.Path, encoding: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the values of each record that is not empty."""
    with open(path, encoding=encoding, newline="") as file:
        reader = csv.reader(file, delimiter=separator, strict=True, skipinitialspace=True)
        try:
            for record in reader:
                if any(map(str.strip, record)):
                    yield reader.line_num, record
        except csv.Error as error:
            raise UsageError(f"{path}, line {reader.line_num}: no CSV ({error})") from error


def _place_of_path(path: pathlib.Path, names: list[str]) -> int:
    if any("\0" in name for name in names):
        raise UsageError(_not_text(path, "utf-8"))
    named = [name for name in names if name]
    twice = sorted({name for name in named if named.count(name) > 1})
    if twice:
        raise UsageError(f"{path} has more than one column {_shown(twice[0])}")
    if len(named) < 2:
        raise UsageError(
            f"{path} must have a line of names first: a column of paths, and other columns. "
            f"Received: {', '.join(map(_shown, named)) or 'nothing'}"
        )
    paths = [place for place, name in enumerate(names) if name.casefold() == _PATH]
    return paths[0] if paths else names.index(named[0])


def _row(
    path: pathlib.Path, line: int, record: list[str], names: list[str], of_path: int
) -> tuple[str, list[str]]:
    values = [value.strip() for value in record]
    while len(values) > len(names) and not values[-1]:
        values.pop()
    if len(values) != len(names):
        raise UsageError(
            f"{path}, line {line}: {len(values)} values for {len(names)} columns "
            f"({_shown(', '.join(names))})"
        )
    if not values[of_path]:
        raise UsageError(f"{path}, line {line}: no path in the column {_shown(names[of_path])}")
    return values[of_path], values


def _not_text(path: pathlib.Path, encoding: str) -> str:
    """Return the message for a file with an unknown encoding."""
    where = ""
    if encoding != "utf-16":
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    line.decode("utf-8")
                except UnicodeError:
                    where = f", which is not, in line {number}"
                    break
    return (
        "columns must be a CSV in UTF-8, or in UTF-16 with a byte order mark (spreadsheets save it "
        f'as "CSV UTF-8"). Received: columns={path}{where}'
    )


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
