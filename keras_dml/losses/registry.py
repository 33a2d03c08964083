"""The registry of losses by their names in `--loss` and `losses.get`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

REGISTERED: dict[str, type] = {}
"""Classes by name, in the order in which their modules were imported."""

Class = TypeVar("Class", bound=type)


def register(name: str) -> Callable[[Class], Class]:
    """Return a decorator that registers a class as the loss of a name.

    Raises:
        ValueError: Another class has the name.
    """

    def add(cls: Class) -> Class:
        other = REGISTERED.get(name, cls)
        if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(
                f"name must be new: {other.__qualname__} of {other.__module__} is the loss "
                f"{name!r} already. Received: name={name!r} for {cls.__qualname__}"
            )
        REGISTERED[name] = cls
        return cls

    return add
