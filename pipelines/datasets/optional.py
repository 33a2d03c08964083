"""The optional package tensorflow-datasets."""

import importlib
from typing import Any

from keras_dml._common.extras import needing

__all__ = ["tensorflow_datasets"]


def tensorflow_datasets(what: str) -> Any:
    """Return the module `tensorflow_datasets`, which the feature `what` needs.

    Raises:
        MissingExtraError: It is not installed.
    """
    with needing("run", what):
        return importlib.import_module("tensorflow_datasets")
