"""Deprecated names that still work, with a DeprecationWarning, for one minor version."""

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

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
    """

    def decorated(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @functools.wraps(function)
        def renamed(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            for old, new in names.items():
                if old in kwargs:
                    owner = function.__qualname__.removesuffix(".__init__")
                    warn_renamed(f"the argument {old} of {owner}", new)
                    kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return renamed

    return decorated


def warn_renamed(what: str, new: str) -> None:
    """Warn the code outside this package that uses the old name.

    Args:
        what: The old name, in full.
        new: The current name, which replaces it.
    """
    level, frame = 1, inspect.currentframe()
    while frame and frame.f_globals.get("__name__", "").startswith("keras_dml."):
        level, frame = level + 1, frame.f_back
    warnings.warn(
        f"{what} is deprecated. Use {new}. The next minor version removes the old name.",
        DeprecationWarning,
        stacklevel=level,
    )
