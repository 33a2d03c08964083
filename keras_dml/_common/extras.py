"""Optional packages, and the extras of keras-dml that install them."""

import contextlib
import importlib
import importlib.util
import os
from collections.abc import Iterator
from typing import Any

from keras_dml._common.errors import ArgumentError

_BACKENDS = ("tensorflow", "jax", "torch")


class MissingExtraError(ImportError):
    """A package is not installed or does not load. The message names the extra that installs it.

    Attributes:
        name: Name of the module that could not be imported.
        extra: Extra, as in `pip install 'keras-dml[extra]'`.
    """

    def __init__(self, message: str, name: str | None, extra: str) -> None:
        super().__init__(message, name=name)
        self.extra = extra


@contextlib.contextmanager
def needing(extra: str, what: str) -> Iterator[None]:
    """Convert a failed import in the block to a one-line `MissingExtraError`.

    Args:
        extra: Extra in setup.cfg that installs the packages.
        what: Feature that needs the packages, the first words of the message.

    Raises:
        MissingExtraError: An import in the block failed.
    """
    try:
        yield
    except MissingExtraError:  # has its message already
        raise
    except ImportError as error:
        package = (error.name or str(error)).partition(".")[0]
        # Add the reason if the package is installed but does not load.
        why = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        raise MissingExtraError(
            f"{what} needs {package}{why}: pip install 'keras-dml[{extra}]'", error.name, extra
        ) from error


def check_installed(package: str, extra: str, what: str) -> None:
    """Raise `MissingExtraError`, as `needing`, unless a package is installed."""
    with needing(extra, what):
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)


class TensorFlow:
    """The module `tensorflow`, imported on first use: `tf = TensorFlow("name of the feature")`.

    Code that uses TensorFlow can then be imported, documented, and subclassed on any backend. It
    works in functions and methods. A subclass of a TensorFlow class must import TensorFlow.

    Args:
        what: Feature that needs TensorFlow, as in `needing`.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy, pickle, and doctest look these up
            raise AttributeError(name)
        with needing("tensorflow", self._what):
            tensorflow = importlib.import_module("tensorflow")
        value = getattr(tensorflow, name)
        setattr(self, name, value)  # later accesses bypass this method
        return value


def check_backend(name: str) -> None:
    """Raise an error unless Keras can run on a backend. Does not import Keras.

    Args:
        name: Value of the environment variable `KERAS_BACKEND`.

    Raises:
        ArgumentError: The library does not support the backend.
        MissingExtraError: The backend is not installed.
    """
    if name not in _BACKENDS:
        raise ArgumentError(f"KERAS_BACKEND must be tensorflow, jax, or torch, but got {name}.")
    if importlib.util.find_spec(name) is not None:
        return
    others = [other for other in _BACKENDS if other != name]
    installed = [other for other in others if importlib.util.find_spec(other) is not None]
    if installed:
        instead = f"set KERAS_BACKEND={installed[0]}"
    else:
        instead = f"install the extra {' or '.join(others)} and set KERAS_BACKEND"
    raise MissingExtraError(
        f"Keras needs {name}: pip install 'keras-dml[{name}]', or {instead}", name, name
    )


def import_keras() -> None:
    """Import Keras. The error for a missing or an unknown backend is one line."""
    try:
        importlib.import_module("keras")
    except (ImportError, ValueError) as error:
        # Without the variable, Keras can read another backend from its configuration file.
        name = os.environ.get("KERAS_BACKEND") or getattr(error, "name", None) or "tensorflow"
        try:
            check_backend(name)
        except (ArgumentError, MissingExtraError) as explained:
            raise explained from None
        raise


def check_tensorflow_backend(what: str) -> None:
    """Raise an error unless Keras runs on its TensorFlow backend.

    Raises:
        MissingExtraError: TensorFlow is not installed.
        ValueError: Keras runs on another backend.
    """
    import keras

    backend = keras.backend.backend()
    if backend != "tensorflow":
        check_installed("tensorflow", "tensorflow", what)
        raise ArgumentError(
            f"KERAS_BACKEND must be tensorflow for {what}, but got {backend}. Set it before Keras "
            "is imported."
        )
