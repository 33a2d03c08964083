"""Packages that `pip install keras-dml` alone does not bring, and the extra that brings each."""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

__all__ = ["MissingExtraError", "needing", "tensorflow_datasets"]


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
    # As in keras_dml.extras: the two packages do not know each other.
    try:
        yield
    except ImportError as error:
        package = (error.name or str(error)).partition(".")[0]
        # A package that is there and does not load says why; one that is not has no more to say.
        why = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        raise MissingExtraError(
            f"{what} needs {package}{why}: pip install 'keras-dml[{extra}]'", error.name, extra
        ) from error


def tensorflow_datasets(what: str) -> Any:
    """The module; `what` needs it.

    Raises:
        MissingExtraError: it is not installed.
    """
    with needing("run", what):
        return importlib.import_module("tensorflow_datasets")
