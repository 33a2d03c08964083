"""The catalog of the losses, loaded without the losses: they bring Keras, which takes seconds."""

import importlib.util
import pathlib
import sys
from typing import Any

__all__ = ["arguments", "attribute", "names", "summary", "trained_by"]

_NAME = "keras_dml.losses.catalog"


def _loaded() -> Any:
    """`keras_dml.losses.catalog` itself, from its file: importing it would import its parents."""
    if _NAME in sys.modules:
        return sys.modules[_NAME]
    package = importlib.util.find_spec("keras_dml")
    (root,) = (package and package.submodule_search_locations) or (".",)
    path = pathlib.Path(root, "losses", "catalog.py")
    spec = importlib.util.spec_from_file_location(_NAME, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = sys.modules[_NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_catalog = _loaded()
arguments, names, summary = _catalog.arguments, _catalog.names, _catalog.summary
attribute, trained_by = _catalog.attribute, _catalog.trained_by
