"""Deep metric learning for Keras 3: losses, models, optimizers, metrics, retrieval, serving.

`import keras_dml` needs only Keras and NumPy, on any backend. It also imports the losses of
`keras_dml.addons`, so that Keras can load every class in a `.keras` file. `keras_dml.retrieval`,
`.export`, and `.similarity` are imported on first access, and TensorFlow and ScaNN on first use. If
one of them is not installed, the error names the extra to install. `import pipelines` uses only
`keras_dml._common`, and does not import Keras.
"""

import sys
from typing import TYPE_CHECKING

from keras_dml._common.exports import lazy_modules
from keras_dml._common.extras import importing_keras

if TYPE_CHECKING:  # for type checkers and editors; see __getattr__
    from keras_dml import export, retrieval, similarity

# `pipelines` and the commands import `_common` from here, without Keras.
if "keras" in sys.modules or not {"pipelines", "experiments"} & set(sys.modules):
    with importing_keras():
        import keras  # noqa: F401
    from keras_dml import addons, callbacks, losses, metrics, mining, models, optimizers, relations

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
    "relations",
    "retrieval",
    "similarity",
]

__getattr__, __dir__ = lazy_modules(__name__, __all__)
