"""Checks of arguments, one form of message: "NAME must be …. Received: NAME=value".

NumPy's scalars are numbers, a bool is none, and NaN and infinity are refused.
"""

import math
import operator
import os
from collections.abc import Iterable
from numbers import Integral, Real

import numpy as np

from pipelines.errors import ArgumentError, ArgumentTypeError

__all__ = [
    "as_array",
    "as_labels",
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
        ArgumentError: nested lists of different lengths, or what else NumPy makes no array of;
            a masked array with masked entries.
    """
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        masked = np.count_nonzero(np.ma.getmaskarray(value))
        raise ArgumentError(
            f"{name} must be an array without gaps. Received: {name}=a masked array, {masked} of "
            "its entries masked"
        )
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"{name} must be an array, or lists of one length. Received: {name}={shown(value)}"
        ) from error


def as_labels(name: str, value: object) -> np.ndarray:
    """The argument, labels, as an array of integers or of strings ("U").

    Whole floats become integers, bytes strings.

    Raises:
        ArgumentError: as `as_array`; integers beyond 64 bits.
        ArgumentTypeError: neither all integers nor all strings; floats that are no whole numbers.
    """
    array = as_array(name, value)
    kind = array.dtype.kind
    # NumPy silently makes strings of the numbers in a list of both.
    if kind in "OT" or (kind in "SU" and not isinstance(value, np.ndarray)):
        array = objects = array if kind == "O" else np.asarray(value, dtype=object)
        entries = objects.ravel().tolist()
        for wanted, dtype in ((str, "U"), (bytes, "S"), (Integral, "q"), (Real, "d")):
            if all(isinstance(entry, wanted) for entry in entries):
                try:
                    array = objects.astype(dtype)
                except OverflowError as error:
                    raise ArgumentError(
                        f"{name} must be integers of 64 bits. Received: {name}={shown(value)}"
                    ) from error
                break
    if array.dtype.kind == "S":  # as those of files whose names are no UTF-8
        return np.array([os.fsdecode(label) for label in array.ravel()]).reshape(array.shape)
    if array.dtype.kind == "f":
        bad = np.flatnonzero(~(np.abs(array) < 2.0 ** (np.finfo(array.dtype).nmant + 1)))
        if not len(bad):
            bad = np.flatnonzero(array != np.floor(array))
        if len(bad):
            raise ArgumentTypeError(
                f"{name} must be all integers or all strings, and floats whole numbers that their "
                f"dtype tells apart. Received: {array.ravel()[bad[0]]} in row {bad[0]} of {name}"
            )
        return array.astype(np.int64)
    if array.dtype.kind not in "iuU":
        first = f", the first is {shown(array.ravel()[0])}" if array.size else ""
        raise ArgumentTypeError(
            f"{name} must be all integers or all strings. "
            f"Received: {name} of dtype {array.dtype}{first}"
        )
    return array


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
