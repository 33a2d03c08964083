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

import pkgutil

from keras_dml._common.exports import lazy_modules

__version__ = "0.18.0"
"""The version of TensorFlow Similarity whose names this package has."""

_MODULES = sorted(one.name for one in pkgutil.iter_modules(__path__) if one.name[0] != "_")
__all__ = ["__version__", *_MODULES]
__getattr__, __dir__ = lazy_modules(__name__, _MODULES)
