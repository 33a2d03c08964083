"""Checks of the arguments of tables, samplers, and transforms."""

import math
import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_dml._common.checks import check_whole, items_of
from keras_dml._common.errors import (
    ArgumentError,
    ArgumentTypeError,
    argument_error,
    as_array,
)
from keras_dml._common.labels import plain_labels

__all__ = [
    "MOST_IMAGES",
    "MOST_SLOTS",
    "as_integers",
    "as_labels",
    "check_callable",
    "check_sampler",
    "checked_items",
    "checked_seed",
    "checked_step",
    "plain_numbers",
]

MOST_IMAGES = 2**31 - 1
"""Most images of a class in a batch: the longest axis of a tensor."""
MOST_SLOTS = 2**62
"""Most images, and most slots of all batches up to a step, because positions are int64."""


def as_labels(name: str, value: object) -> np.ndarray:
    """Convert labels to an array of integers or of strings ("U"). Bytes become strings.

    Raises:
        ValueError: As in `plain_labels`. Also for bools.
    """
    array = plain_labels(name, value)
    if array.dtype.kind == "S":  # class names of files whose names are not UTF-8
        return np.array([os.fsdecode(label) for label in array.ravel()]).reshape(array.shape)
    if array.dtype.kind == "b":
        raise ArgumentTypeError(f"{name} must be all integers or all strings, but got dtype bool.")
    return array


def as_integers(
    name: str, value: object, *shape: int | None, bounds: tuple[int, int] | None = None
) -> np.ndarray:
    """Convert the argument to an array of integers.

    Args:
        name: Name of the argument, for the message.
        value: The argument.
        *shape: Length of each axis. None: any length from 1.
        bounds: Smallest and largest valid value.

    Raises:
        TypeError: The values are not integers.
        ValueError: The shape is wrong, or a value is out of range.
    """
    array = as_array(name, value)
    is_integer = array.dtype.kind in "iu"
    fits = all(n > 0 if want is None else n == want for n, want in zip(array.shape, shape))
    if is_integer and array.ndim == len(shape) and fits:
        if bounds is not None and ((array < bounds[0]) | (array > bounds[1])).any():
            row = np.argwhere((array < bounds[0]) | (array > bounds[1]))[0, 0]
            raise ArgumentError(
                f"{name} must be integers from {bounds[0]} to {bounds[1]}, but got "
                f"{array[row].tolist()} in row {row}."
            )
        return array
    axes = ", ".join("n" if want is None else str(want) for want in shape)
    kind = ArgumentError if is_integer else ArgumentTypeError
    raise kind(
        f"{name} must be integers of shape [{axes}], and not empty, but got shape {array.shape} "
        f"and dtype {array.dtype}."
    )


def checked_items(name: str, what: str, value: Iterable[object]) -> list[object]:
    """Return the items of a list, an array, or another collection that is not a string.

    Args:
        name: Name of the argument, for the message.
        what: Description of the items, in the plural.
        value: The argument.

    Raises:
        TypeError: The value is a string or not iterable.
    """
    items = items_of(value)
    if items is None:
        raise argument_error(name, f"a list of {what}", value, ArgumentTypeError)
    return items


def check_callable(name: str, value: object) -> None:
    """Raise `TypeError` unless the argument can be called."""
    if not callable(value):
        raise argument_error(name, "a function", value, ArgumentTypeError)


def check_sampler(sampler: Any) -> int:
    """Return the batch size of a sampler, or raise `TypeError` or `ValueError`."""
    if not callable(sampler) or not hasattr(sampler, "batch_size"):
        wanted = "a function from a step to rows, with an attribute batch_size"
        raise argument_error("sampler", wanted, sampler, ArgumentTypeError)
    return check_whole("sampler.batch_size", sampler.batch_size, least=1)


def plain_numbers(values: object) -> tuple[float, ...] | None:
    """Return finite numbers as a tuple of Python numbers, or None for anything else.

    Integers stay integers, so that messages show arguments unchanged.
    """
    given = items_of(values)
    if given is None:
        return None
    plain = tuple(value.item() if isinstance(value, np.generic) else value for value in given)
    fits = all(
        isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
        for number in plain
    )
    return plain if fits else None


def checked_seed(seed: object) -> int:
    """Check that a seed is an int64. Larger seeds would repeat smaller ones."""
    return check_whole("seed", seed, least=-(2**63), most=2**63 - 1)


def checked_step(step: object, batch_size: int) -> int:
    """Check that a step is an integer, and that the positions of its slots are int64."""
    return check_whole("step", step, least=0, most=MOST_SLOTS // batch_size)
