"""Deprecated names that still work, with a DeprecationWarning, for one minor version."""

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from keras_dml._common.errors import ArgumentTypeError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def renamed_arguments(
    **names: str,
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Decorate a function to accept former names of its keyword arguments.

        @renamed_arguments(neighbours="neighbors")
        def export(model, neighbors=10): ...

    Args:
        names: Old name = current name.

    Raises:
        TypeError: On a call, both an old name and its new name are set.
    """

    def decorated(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @functools.wraps(function)
        def renamed(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            for old, new in names.items():
                if old not in kwargs:
                    continue
                if new in kwargs:
                    raise ArgumentTypeError(
                        f"{old} must not be set together with {new}, its new name, but got "
                        f"{old}={kwargs[old]!r} and {new}={kwargs[new]!r}."
                    )
                warn_renamed(f"the argument {old} of {_public_name(function)}", new)
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return renamed

    return decorated


def renamed_attributes(module: str, /, **names: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module with renamed attributes.

        __getattr__ = renamed_attributes(__name__, nearest_neighbours="nearest_neighbors")

    Args:
        module: Full name of the module.
        names: Old name = current name.
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
    """Warn the code that called the function, or read the attribute, that calls this function.

    Args:
        what: The old name, in full.
        new: The current name.
    """
    warnings.warn(
        f"{what} is called {new} now; the old name goes with the next minor version",
        DeprecationWarning,
        stacklevel=3,
    )
