"""Lists that come with a published dataset: lines of columns, and the images that they name."""

import collections
import math
import os
import re
from collections.abc import Iterable, Sequence

from keras_dml._common.errors import ArgumentError
from pipelines.datasets.files import LOGGER

# What is echoed of a line or a name: a damaged file may be one line of megabytes.
_SHOWN = 200  # characters
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


def read_table(
    path: str,
    columns: dict,
    counted: bool = False,
    header: bool = False,
    separator: str | None = None,
) -> dict:
    """Reads lines of columns; empty lines are passed over.

    Args:
        path: the file, UTF-8.
        columns: name -> what makes a value of the word (`whole`, `decimal`, `str`, ...; ValueError
            where it is none). The last takes the rest of the line.
        counted: whether the first line is the number of lines that follow the header.
        header: whether the columns' names come before the lines.
        separator: what stands between columns. None: blanks.

    Returns:
        First column -> tuple of the others, in the order of the lines.

    Raises:
        ValueError: a line that does not parse (names file and line), a first column that comes
            twice, no lines at all, or another number of them than the file says.
    """
    form = (separator or " ").join(columns)
    with open(path, "rb") as file:
        lines = [(number, line) for number, line in enumerate(file, start=1) if line.strip()]
    promised = None
    if counted and lines:
        promised = _parse(path, *lines.pop(0), {"number of images": whole}, None)[0]
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
            raise ArgumentError(
                f"{path}, line {number}: the {name} {_shortened(key)} is there already."
            )
        rows[key] = tuple(values)
    if not rows:
        raise ArgumentError(f"{path} is empty: expected lines '{form}'.")
    if promised not in (None, len(rows)):
        raise ArgumentError(
            f"{path} says in its first line that it lists {promised} images, but it lists "
            f"{len(rows)}: it may have been cut off."
        )
    return rows


def whole(word: str) -> int:
    """A whole number of 18 digits at most; ValueError of all else that Python takes for one.

    An `int` reads `1_000` and the digits of other scripts too, and numbers that no array holds.
    """
    if not _WHOLE.fullmatch(word):
        raise ValueError(word)
    return int(word)


def decimal(word: str) -> float:
    """A finite number in plain digits; ValueError of all else."""
    number = float(word)
    if not word.isascii() or "_" in word or not math.isfinite(number):
        raise ValueError(word)
    return number


def check_images(folder: str, paths: Iterable[str], listed_in: str) -> None:
    """Raises ValueError unless all listed images are in `folder`: says how many, names five.

    Images that are listed more than once are warned of. A list may come from anybody: a path that
    leads out of the folder is refused before it is looked for. (What lies in the folder as a link
    is the user's own doing, and is followed.)

    Args:
        folder: what `paths` are relative to.
        paths: of the images.
        listed_in: the name of the list, for the message.
    """
    # Each folder is listed once, which network disks thank.
    present: dict[str, set[str]] = {}
    missing = []
    paths = list(paths)
    outside = [path for path in paths if _leads_out(path)]
    if outside:
        raise ArgumentError(
            f"{len(outside)} images listed in {listed_in} lie outside of {folder}, from which "
            f"nothing is read. The first: {first(outside)}"
        )
    again = [path for path, times in collections.Counter(paths).items() if times > 1]
    if again:
        LOGGER.warning(
            "%s of %s lists %d images more than once, the first is %s",
            listed_in,
            folder,
            len(again),
            first(again[:1]),
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


def _leads_out(path: str) -> bool:
    inner = os.path.normpath(path)
    return os.path.isabs(path) or inner.split(os.sep)[0] == os.pardir or "\0" in path


def first(items: Sequence[object]) -> str:
    """The first five, for a message."""
    return ", ".join(_shortened(item) for item in items[:5])


def _shortened(item: object) -> str:
    text = str(item)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def _parse(path: str, number: int, line: bytes, columns: dict, separator: str | None) -> list:
    try:
        words = line.decode("utf-8").split(separator, maxsplit=len(columns) - 1)
        return [kind(word.strip()) for word, kind in zip(words, columns.values(), strict=True)]
    except ValueError as error:
        form = (separator or " ").join(columns)
        raise _wrong_line(path, number, line, f"'{form}'") from error


def _wrong_line(path: str, number: int, line: bytes, expected: str) -> ValueError:
    return ArgumentError(
        f"{path}, line {number}: expected {expected}. "
        f"Received: {_shortened(repr(line.decode('utf-8', 'replace').strip()))}"
    )
