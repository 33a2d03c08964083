"""Deep metric learning for Keras 3: losses, models, optimizers, metrics, retrieval, serving.

It needs only Keras and NumPy, on any backend. As soon as Keras or one of the modules is imported,
all modules are whose classes Keras can load from a `.keras` file. `keras_dml.retrieval`, `.export`,
and `.upgrade` are imported on first access, and TensorFlow and ScaNN on first use. If one of them
is not installed, the error names the extra to install. `import keras_dml` by itself imports no
Keras, because `pipelines` uses only `keras_dml._common`.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from keras_dml._common.exports import lazy_modules
from keras_dml._common.keras_import import AfterKeras

if TYPE_CHECKING:  # for type checkers and editors; see __getattr__
    from keras_dml import (
        addons,
        callbacks,
        export,
        layers,
        losses,
        metrics,
        mining,
        models,
        optimizers,
        relations,
        retrieval,
        upgrade,
    )

__version__ = "0.3.0"

__all__ = [
    "addons",
    "callbacks",
    "export",
    "layers",
    "losses",
    "metrics",
    "mining",
    "models",
    "optimizers",
    "relations",
    "retrieval",
    "upgrade",
]

_attribute, __dir__ = lazy_modules(__name__, __all__)


def __getattr__(name: str) -> ModuleType:
    if name == "similarity":
        importlib.import_module(f"{__name__}.similarity")  # raises an error with its replacement
    return _attribute(name)


_ON_FIRST_ACCESS = {"export", "retrieval", "upgrade"}


def _import_modules() -> None:
    """Import the modules whose classes Keras must know to load a file."""
    for name in __all__:
        if name not in _ON_FIRST_ACCESS:
            importlib.import_module(f"{__name__}.{name}")


if "keras" in sys.modules:
    _import_modules()
else:
    _without = ("keras_dml._common", "keras_dml._files", "keras_dml.similarity")
    sys.meta_path.insert(0, AfterKeras(__name__, _without, _import_modules))
