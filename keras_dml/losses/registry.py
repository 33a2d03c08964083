"""The registry of losses by name."""

from collections.abc import Callable
from typing import Any, TypeVar

import keras

REGISTERED: dict[str, type[Any]] = {}
"""Classes by name, in the order in which their modules were imported."""

Class = TypeVar("Class", bound=type[Any])


def register(name: str) -> Callable[[Class], Class]:
    """Return a decorator that registers a class as the loss of a name, and with Keras.

    The name is also the default `name` of the loss, unless the class sets `default_name`.

    Raises:
        ValueError: Another class has the name.
    """

    def add(cls: Class) -> Class:
        other = REGISTERED.get(name, cls)
        if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(
                f"name must be new, but got {name!r} for {cls.__qualname__}. "
                f"{other.__qualname__} of {other.__module__} has this name."
            )
        REGISTERED[name] = cls
        if "default_name" not in vars(cls):
            cls.default_name = name
        return keras.saving.register_keras_serializable("keras_dml")(cls)

    return add
