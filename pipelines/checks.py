"""Checks of arguments, one form of message: "NAME must be …. Received: NAME=value".

NumPy's scalars are numbers, a bool is none, and NaN and infinity are refused.
"""

import math
import operator

import numpy as np

from pipelines.errors import ArgumentError, ArgumentTypeError

__all__ = ["plain_numbers", "whole_number"]


def whole_number(name: str, value: object, at_least: int | None = None) -> int:
    """The argument as an int.

    Args:
        name: of the argument, for the message.
        value: an int, an integer of NumPy's, or what else `operator.index` takes.
        at_least: the lowest that is right; None: any.

    Raises:
        ArgumentTypeError: it is no whole number.
        ArgumentError: it is too low.
    """
    limit = "" if at_least is None else f" of at least {at_least}"
    refusal = f"{name} must be a whole number{limit}. Received: {name}={value!r}"
    if isinstance(value, bool | np.bool_):
        raise ArgumentTypeError(refusal)
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise ArgumentTypeError(refusal) from error
    if at_least is not None and number < at_least:
        raise ArgumentError(f"{name} must be at least {at_least}. Received: {name}={number}")
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
