"""Deprecated names that still work, with a DeprecationWarning, for one minor version."""

import importlib
import inspect
import sys
import warnings
from collections.abc import Callable
from typing import Any

from keras_dml._common.exports import missing_attribute


def moved_names(old: str, new: str, *names: str) -> Callable[[str], Any]:
    """Return `__getattr__` of a module from which public names moved.

        __getattr__ = moved_names(__name__, "keras_dml.layers", "ProxyHead")

    Args:
        old: Full name of the module.
        new: Full name of the module that has the names now.
        names: The names.
    """

    def attribute(name: str) -> Any:
        if name not in names:
            raise missing_attribute(old, name, vars(sys.modules[old])["__all__"])
        warn_renamed(f"{old}.{name}", f"{new}.{name}")
        return getattr(importlib.import_module(new), name)

    return attribute


def renamed_names(module: str, **names: str) -> Callable[[str], Any]:
    """Return `__getattr__` of a module whose public names changed.

        __getattr__ = renamed_names(__name__, PrecisionAtR="PrecisionScores")

    Args:
        module: Full name of the module.
        names: Old name = current name.
    """

    def attribute(name: str) -> Any:
        here = vars(sys.modules[module])
        if name not in names:
            raise missing_attribute(module, name, here["__all__"])
        warn_renamed(f"{module}.{name}", f"{module}.{names[name]}")
        return here[names[name]]

    return attribute


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
