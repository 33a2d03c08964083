"""Old names that keep working, with a DeprecationWarning, for one minor version."""

import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from keras_dml.errors import ArgumentTypeError

__all__ = ["renamed_arguments", "renamed_attributes", "warn_renamed"]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def renamed_arguments(
    **names: str,
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Decorator: keyword arguments that a function took by another name before.

        @renamed_arguments(neighbours="neighbors")
        def export(model, neighbors=10): ...

    Args:
        names: old name = the name of today, which must be a parameter.

    Raises:
        TypeError: when the function is made, a name of today that it lacks or an old one that it
            has; when it is called, an old name beside its new one.
    """

    def decorated(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        parameters = inspect.signature(function).parameters
        for old, new in names.items():
            if new not in parameters or old in parameters:
                raise ArgumentTypeError(f"{function.__qualname__} must take {new} and not {old}")

        @functools.wraps(function)
        def renamed(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            for old, new in names.items():
                if old not in kwargs:
                    continue
                if new in kwargs:
                    raise ArgumentTypeError(
                        f"{old} is the former name of {new}: give one of them. "
                        f"Received: {old}={kwargs[old]!r}, {new}={kwargs[new]!r}"
                    )
                warn_renamed(f"the argument {old} of {_public_name(function)}", new)
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return renamed

    return decorated


def renamed_attributes(module: str, /, **names: str) -> Callable[[str], Any]:
    """A `__getattr__` for a module some of whose names have changed.

        __getattr__ = renamed_attributes(__name__, nearest_neighbours="nearest_neighbors")

    Args:
        module: its full name.
        names: old name = the name of today.
    """

    def attribute(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn_renamed(f"{module}.{name}", names[name])
        return getattr(sys.modules[module], names[name])

    return attribute


def _public_name(function: Callable[..., Any]) -> str:
    return function.__qualname__.removesuffix(".__init__")


def warn_renamed(what: str, new: str) -> None:
    """Warn whoever called the function, or read the attribute, that calls this.

    Args:
        what: the old name, in full.
        new: the name of today.
    """
    warnings.warn(
        f"{what} is called {new} now; the old name goes with the next minor version",
        DeprecationWarning,
        stacklevel=3,
    )
