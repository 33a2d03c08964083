"""Deep metric learning for Keras 3: losses, models, optimizers, metrics, retrieval, serving.

`import keras_dml` needs Keras and NumPy alone, on any backend. It brings the losses of
`keras_dml.addons` too, so that Keras knows whatever a `.keras` file may name. `keras_dml.retrieval`
and `.export` load themselves when they are asked for, and TensorFlow and ScaNN when they are used;
where one is not installed, the error names what to install.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from keras_dml import addons, callbacks, losses, metrics, mining, models, optimizers

if TYPE_CHECKING:  # what type checkers and editors see; see __getattr__
    from keras_dml import export, retrieval

__version__ = "0.2.0"

__all__ = [
    "addons",
    "callbacks",
    "export",
    "losses",
    "metrics",
    "mining",
    "models",
    "optimizers",
    "retrieval",
]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
