"""TensorFlow Similarity for Keras 3: the same names on TensorFlow, JAX, and PyTorch.

`import tensorflow_similarity as tfsim` becomes `import keras_dml.similarity as tfsim`. Names,
arguments, defaults, and values are those of version 0.18. `docs/pages/guides/migrating.md` lists
the parts that are left out.

Differences in all submodules:

- Samplers, lookups, and metrics return NumPy arrays, not TensorFlow tensors.
- A user's mistake raises a `ValueError` that names the argument.
- The index is exact. The approximate searches `"nmslib"` and `"faiss"` search exactly.
- Nothing is unpickled.

New programs should use `keras_dml.losses`, `keras_dml.retrieval`, and `keras_dml.metrics`.
"""

import importlib
from types import ModuleType

__version__ = "0.18.0"
"""The version of TensorFlow Similarity whose names this package has."""

__all__ = [
    "__version__",
    "callbacks",
    "classification_metrics",
    "distances",
    "evaluators",
    "indexer",
    "layers",
    "losses",
    "matchers",
    "models",
    "retrieval_metrics",
    "samplers",
    "schedules",
    "search",
    "stores",
    "training_metrics",
    "types",
    "utils",
    "visualization",
]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
