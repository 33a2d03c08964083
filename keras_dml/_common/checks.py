"""Argument checks with one form of message: "NAME must be X, but got Y."

A number is a Python number or a NumPy scalar. Checks return Python numbers, so that configurations
can be saved as JSON. Bools, strings, and arrays are not numbers. NaN and infinity are never valid.
"""

import math
import numbers
import operator
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_dml._common.errors import ArgumentError, ArgumentTypeError, argument_error
from keras_dml._common.errors import as_array as as_array
from keras_dml._common.errors import shown as shown

# Bound of whole numbers without a smaller bound: the widest integer of NumPy and the backends.
_MOST_WHOLE = 2**63 - 1
_COMPARISONS = {
    "above": operator.gt,
    "of at least": operator.ge,
    "below": operator.lt,
    "of at most": operator.le,
}


def check_number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
) -> float:
    """Return `value` as a float if it is a finite number within the bounds.

    Args:
        name: Name of the argument, for the message.
        value: Value of the argument.
        above, below: Exclusive bounds.
        least, most: Inclusive bounds.

    Raises:
        TypeError: The value is not a number.
        ValueError: The value is NaN, infinite, or out of range.
    """
    bounds = _bounds(above, least, below, most)
    wanted = f"a number {_range(bounds)}" if bounds else "a finite number"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise argument_error(name, wanted, value, ArgumentTypeError)
    number = float(value)
    if not math.isfinite(number) or not _is_within(number, bounds):
        raise argument_error(name, wanted, value)
    return number


def check_positive(name: str, value: object) -> float:
    """Return `value` as a float if it is a finite number above 0. Raises as `check_number`."""
    return check_number(name, value, above=0)


def check_distance(name: str, value: object) -> float:
    """Return `value` as a float if it is a distance of unit vectors, strictly between 0 and 2.

    Raises as `check_number`.
    """
    return check_number(name, value, above=0, below=2)


def check_whole(
    name: str, value: object, *, least: int | None = None, most: int | None = None
) -> int:
    """Return `value` as an int if it is an integer (not 2.0) from `least` to `most`, within int64.

    Raises:
        TypeError: The value is not an integer.
        ValueError: The value is out of range.
    """
    bounds = _bounds(least=least, most=most)
    wanted = f"a whole number {_range(bounds)}".rstrip()
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise argument_error(name, wanted, value, ArgumentTypeError)
    number = int(value)
    if not _is_within(number, bounds) or number > _MOST_WHOLE:
        raise argument_error(name, wanted, value)
    return number


def check_wholes(
    name: str, values: Iterable[object], *, least: int | None = None, most: int | None = None
) -> tuple[int, ...]:
    """Return `values` as ints if they are one or more integers from `least` to `most`.

    Raises:
        TypeError: The values are not a collection of integers.
        ValueError: The collection is empty, or a value is out of range.
    """
    wanted = f"one or more whole numbers {_range(_bounds(least=least, most=most))}".rstrip()
    try:
        wholes = tuple(check_whole(name, value, least=least, most=most) for value in values)
    except TypeError as error:  # not iterable, or a number that is not whole
        raise argument_error(name, wanted, values, ArgumentTypeError) from error
    except ArgumentError as error:
        raise argument_error(name, wanted, values) from error
    if not wholes:
        raise argument_error(name, wanted, values)
    return wholes


def items_of(value: Any) -> list[Any] | None:
    """Return the items of a collection that is not a string. None for any other value."""
    if isinstance(value, str | bytes):
        return None
    try:
        return list(value)
    except TypeError:
        return None


def check_seed(name: str, value: object) -> int:
    """Return `value` as an int if it is from 0 to 2³¹ − 1. Raises as `check_whole`."""
    return check_whole(name, value, least=0, most=2**31 - 1)


def check_bool(name: str, value: object) -> bool:
    """Return `value` as a bool if it is True, False, a NumPy bool, or the integer 1 or 0.

    Raises:
        TypeError: The value is anything else.
    """
    if isinstance(value, bool | np.bool_ | numbers.Integral) and value in (0, 1):
        return bool(value)
    raise argument_error(name, "True or False", value, ArgumentTypeError)


def check_path(name: str, value: object) -> pathlib.Path:
    """Return `value` as a path if it is a string or a path object.

    Raises:
        TypeError: The value is anything else.
    """
    if not isinstance(value, str | os.PathLike):
        raise argument_error(name, "a string or a path object", value, ArgumentTypeError)
    return pathlib.Path(value)


def check_choice(name: str, value: object, choices: Sequence[str]) -> str:
    """Return `value` if it is one of the words `choices`.

    Raises:
        ValueError: The value is anything else.
    """
    if isinstance(value, str) and value in choices:
        return str(value)
    wanted = f"one of {', '.join(repr(choice) for choice in choices)}"
    raise argument_error(name, wanted, value)


def _bounds(
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
) -> dict[str, float]:
    """Return the bounds that are set, by their words in messages."""
    words = {"above": above, "of at least": least, "below": below, "of at most": most}
    return {word: bound for word, bound in words.items() if bound is not None}


def _range(bounds: dict[str, float]) -> str:
    if bounds.keys() == {"of at least", "of at most"}:
        return f"from {bounds['of at least']} to {bounds['of at most']}"
    return " and ".join(f"{word} {bound}" for word, bound in bounds.items())


def _is_within(number: float, bounds: dict[str, float]) -> bool:
    return all(_COMPARISONS[word](number, bound) for word, bound in bounds.items())
