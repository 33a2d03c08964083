"""Conversions of texts: paths, numbers, and modules."""

from __future__ import annotations

import importlib
import math
import os
import pathlib
from collections.abc import Sequence

from experiments.options.errors import UsageError


def absolute(text: str) -> pathlib.Path:
    """Return an absolute path, with ~ resolved and links kept."""
    return pathlib.Path(os.path.abspath(os.path.expanduser(text)))


def absolute_place(text: str) -> str:
    """Return the absolute path of a folder. A URI such as s3://BUCKET/FOLDER stays the same."""
    return text if "://" in text else str(absolute(text))


def normal_path(text: str) -> str:
    """Return a normalized path, with ~ resolved."""
    return os.path.normpath(os.path.expanduser(text))


def import_modules(names: Sequence[str]) -> None:
    """Import the user's modules, which register classes. Raise `UsageError` if one is missing."""
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise UsageError(
                f"import_modules must be modules that can be imported from here, but got "
                f"{','.join(names)} ({error})."
            ) from error


def whole_numbers(name: str, words: Sequence[str]) -> tuple[int, ...]:
    """Return the integers of a list flag. Raise `UsageError` if one is invalid or negative."""
    # `isdigit` also accepts ².
    if not all(word.strip().isdecimal() for word in words):
        raise UsageError(
            f"{name} must be whole numbers with commas between them, but got {','.join(words)}."
        )
    return tuple(int(word) for word in words)


def numbers(name: str, words: Sequence[str], how_many: int) -> tuple[float, ...]:
    """Return the numbers of a list flag. Raise `UsageError` unless there are `how_many`."""
    try:
        found = tuple(float(word) for word in words)
    except ValueError:
        found = ()
    if len(found) != how_many or not all(map(math.isfinite, found)):
        raise UsageError(
            f"{name} must be {how_many} numbers with commas between them, but got "
            f"{','.join(words)}."
        )
    return found
