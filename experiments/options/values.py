"""Conversions of a flag's text."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from experiments.options.declaration import Flag
from experiments.options.errors import UsageError
from experiments.recipes.nearest import did_you_mean

UNSET = "none"
TRUE, FALSE = ("true", "t", "1", "yes", "y"), ("false", "f", "0", "no", "n")
# TensorFlow counts in int32 and computes in float32.
_MOST_WHOLE, _MOST_NUMBER = 2**31 - 1, 3.4e38


def converted(flag: Flag, text: str) -> Any:
    """Return the value of a flag's text.

    Raises:
        UsageError: The flag cannot have this value.
    """
    if not text and not (flag.kind is tuple and flag.default == () and not flag.repeated):
        raise UsageError(f"{flag.name} must not be empty, but got {flag.name}=.")
    if flag.kind is bool:
        if text.lower() in (*TRUE, *FALSE):
            return text.lower() in TRUE
        if text == UNSET and flag.default is None:
            return None
        raise _refused(flag, "true or false", text)
    choices = flag.choices
    can_be_unset = flag.can_be_unset and flag.default is None and not flag.required
    if text == UNSET and can_be_unset and text not in (choices or ()):
        return None
    words = tuple(map(str.strip, text.split(","))) if flag.kind is tuple else (text,)
    for word in words:
        if choices and word not in choices:
            raise _refused(flag, f"one of {', '.join(choices)}", text, did_you_mean(word, choices))
    if flag.kind in (int, float):
        return _number(flag, text)
    if flag.kind is tuple:
        if flag.repeated:
            return (text,)
        return words if text else ()
    if flag.kind is pathlib.Path:
        return absolute(text)
    return flag.convert(text) if flag.convert else text


def _number(flag: Flag, text: str) -> int | float:
    low, high = flag.lower_bound, flag.upper_bound
    # Plain digits only: Python also reads 1_000 and the digits of other scripts.
    wanted, form, limit = (
        ("a whole number", "[+-]?[0-9]{1,18}", _MOST_WHOLE)
        if flag.kind is int
        else ("a finite number", "[-+.0-9eE]+", _MOST_NUMBER)
    )
    number: int | float = math.nan
    if re.fullmatch(form, text):
        with contextlib.suppress(ValueError):
            number = flag.kind(text)
    if not (-limit if low is None else low) <= number <= (limit if high is None else high):
        bounds = [f"of at least {low:g}"] if low is not None else []
        bounds += [f"of at most {high:.10g}"] if high is not None else []
        bounded = f"{wanted} {' and '.join(bounds)}".rstrip()
        raise _refused(flag, bounded, text, f" {flag.summary}" if math.isnan(number) else "")
    return number


def _refused(flag: Flag, wanted: str, text: str, hint: str = "") -> UsageError:
    return UsageError(f"{flag.name} must be {wanted}, but got {text}.{hint}")


def absolute(text: str) -> pathlib.Path:
    """Return an absolute path, with ~ resolved and links kept."""
    return pathlib.Path(os.path.abspath(os.path.expanduser(text)))


def absolute_place(text: str) -> str:
    """Return the absolute path of a folder. A URI such as s3://BUCKET/FOLDER stays the same."""
    return text if "://" in text else str(absolute(text))


def normal_path(text: str) -> str:
    """Return a normalized path, with ~ resolved."""
    return os.path.normpath(os.path.expanduser(text))


def normal_fold(text: str) -> str:
    """Return a fold K/N, and raise `UsageError` for other text."""
    numbers = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text)
    which, folds = map(int, numbers.groups()) if numbers else (0, 0)
    if not (folds >= 2 and 1 <= which <= folds):
        raise UsageError(
            f"fold must be K/N, such as 1/4, but got {text}. It is part K of the training classes "
            "in N parts, with N of at least 2."
        )
    return f"{which}/{folds}"


def normal_tracker(text: str) -> str:
    """Return TRACKER:TARGET, and raise `UsageError` for other text."""
    if text.partition(":")[0] not in ("mlflow", "wandb") or ":" not in text:
        raise UsageError(f"log_to must be mlflow:URI or wandb:PROJECT, but got {text}.")
    return text


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
