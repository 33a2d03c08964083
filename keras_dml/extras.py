"""Packages that `pip install keras-dml` alone does not bring, and the extra that brings each."""

import contextlib
import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

from keras_dml.errors import ArgumentError

__all__ = ["MissingExtraError", "TensorFlow", "check_tensorflow_backend", "needing"]


class MissingExtraError(ImportError):
    """A package is not installed, or does not load; the message names the extra that brings it.

    Attributes:
        name: of the module that could not be imported.
        extra: as in `pip install 'keras-dml[extra]'`.
    """

    def __init__(self, message: str, name: str | None, extra: str) -> None:
        super().__init__(message, name=name)
        self.extra = extra


@contextlib.contextmanager
def needing(extra: str, what: str) -> Iterator[None]:
    """Around imports: one that fails becomes a `MissingExtraError` of one line.

    Args:
        extra: of setup.cfg, that brings the packages.
        what: what needs them, the message's first words.

    Raises:
        MissingExtraError: an import in the block failed.
    """
    try:
        yield
    except MissingExtraError:  # says it already
        raise
    except ImportError as error:
        package = (error.name or str(error)).partition(".")[0]
        # A package that is there and does not load says why; one that is not has no more to say.
        why = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        raise MissingExtraError(
            f"{what} needs {package}{why}: pip install 'keras-dml[{extra}]'", error.name, extra
        ) from error


class TensorFlow:
    """`tf = TensorFlow("what needs it")`: the module `tensorflow`, imported when first used.

    So what is written with TensorFlow can be imported, documented and subclassed on any backend.
    For functions and methods; a class that derives from TensorFlow's imports it.

    Args:
        what: as in `needing`, for where it is not installed.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what copy, pickle and doctest look for
            raise AttributeError(name)
        with needing("tensorflow", self._what):
            tensorflow = importlib.import_module("tensorflow")
        value = getattr(tensorflow, name)
        setattr(self, name, value)  # found without this method from now on
        return value


def check_tensorflow_backend(what: str) -> None:
    """Refuse what only trains on Keras' TensorFlow backend.

    Raises:
        MissingExtraError: TensorFlow is not installed.
        ValueError: Keras runs on another backend.
    """
    import keras

    backend = keras.backend.backend()
    if backend != "tensorflow":
        with needing("tensorflow", what):
            if importlib.util.find_spec("tensorflow") is None:
                raise ModuleNotFoundError("tensorflow", name="tensorflow")
        raise ArgumentError(
            f"{what} needs Keras' TensorFlow backend: set KERAS_BACKEND=tensorflow before Keras is "
            f"imported. Received: the backend {backend}"
        )
