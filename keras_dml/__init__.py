"""Deep metric learning for Keras 3: losses, models, optimizers, retrieval, serving.

`import keras_dml` brings losses, models, optimizers, metrics and callbacks, and the losses of
`keras_dml.addons`, so that Keras knows whatever a `.keras` file may name. What needs TensorFlow or
ScaNN is imported when it is asked for: `keras_dml.export`, `keras_dml.retrieval`.
"""

from keras_dml import addons, callbacks, losses, metrics, models, optimizers

__version__ = "0.1.0"

__all__ = ["addons", "callbacks", "losses", "metrics", "models", "optimizers"]
