"""Checks of arguments, one form of message: "NAME must be …. Received: NAME=value".

NumPy's scalars are numbers, a bool is none, and NaN and infinity are refused.
"""

import math
import operator
from collections.abc import Iterable

import numpy as np

from pipelines.errors import ArgumentError, ArgumentTypeError

__all__ = [
    "as_array",
    "check_bool",
    "check_callable",
    "items_of",
    "plain_numbers",
    "shown",
    "whole_number",
]

_LONGEST_ECHO = 200


def shown(value: object) -> str:
    """A value as a message echoes it, in one line: an array of many numbers by shape and dtype."""
    if isinstance(value, np.ndarray) and value.size > 10:
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    try:
        text = repr(value)
    except Exception:  # a whole number of 5,000 digits, for one
        return f"an object of type {type(value).__name__}"
    if "\n" in text:
        text = " ".join(text.split())
    return text if len(text) <= _LONGEST_ECHO else f"{text[:_LONGEST_ECHO]}…"


def as_array(name: str, value: object) -> np.ndarray:
    """The argument as a NumPy array, arrays as they are.

    Raises:
        ArgumentError: nested lists of different lengths, or what else NumPy makes no array of.
    """
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"{name} must be an array, or lists of one length. Received: {name}={shown(value)}"
        ) from error


def items_of(name: str, what: str, value: Iterable[object]) -> tuple[object, ...]:
    """What a list, an array or the like holds.

    Args:
        name: of the argument, for the message.
        what: it holds, in the plural, for the message.
        value: the argument.

    Raises:
        ArgumentTypeError: nothing to iterate over, or a text.
    """
    try:
        if not isinstance(value, str | bytes):
            return tuple(value)
    except TypeError:
        pass
    raise ArgumentTypeError(f"{name} must be a list of {what}. Received: {name}={shown(value)}")


def check_callable(name: str, value: object) -> None:
    """`ArgumentTypeError` unless the argument can be called."""
    if not callable(value):
        raise ArgumentTypeError(f"{name} must be a function. Received: {name}={shown(value)}")


def check_bool(name: str, value: object) -> bool:
    """The argument as a bool: True or False, NumPy's too, or the whole number 1 or 0.

    Raises:
        ArgumentTypeError: it is anything else.
    """
    if isinstance(value, bool | np.bool_ | int | np.integer) and value in (0, 1):
        return bool(value)
    raise ArgumentTypeError(f"{name} must be True or False. Received: {name}={shown(value)}")


def whole_number(
    name: str, value: object, at_least: int | None = None, at_most: int | None = None
) -> int:
    """The argument as an int.

    Args:
        name: of the argument, for the message.
        value: an int, an integer of NumPy's, or what else `operator.index` takes.
        at_least: the lowest that is right; None: any.
        at_most: the highest that is right; None: any.

    Raises:
        ArgumentTypeError: it is no whole number.
        ArgumentError: it is too low, or too high.
    """
    limit = "" if at_least is None else f" of at least {at_least}"
    refusal = f"{name} must be a whole number{limit}. Received: {name}={shown(value)}"
    if isinstance(value, bool | np.bool_):
        raise ArgumentTypeError(refusal)
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise ArgumentTypeError(refusal) from error
    if at_least is not None and number < at_least:
        raise ArgumentError(f"{name} must be at least {at_least}. Received: {name}={shown(number)}")
    if at_most is not None and number > at_most:
        raise ArgumentError(f"{name} must be at most {at_most}. Received: {name}={shown(number)}")
    return number


def plain_numbers(values: object) -> tuple[float, ...] | None:
    """A sequence of finite numbers as a tuple of Python's own; None where it is something else.

    Ints stay ints: an argument looks as it was given.
    """
    try:
        given: tuple[object, ...] = tuple(values)  # type: ignore[arg-type]
    except TypeError:
        return None
    plain: list[float] = []
    for value in given:
        number = value.item() if isinstance(value, np.generic) else value
        if isinstance(number, bool) or not isinstance(number, int | float):
            return None
        if not math.isfinite(number):
            return None
        plain.append(number)
    return tuple(plain)
