"""A loss on whichever backend Keras runs: compiled, and with its gradient."""

import keras
import numpy as np


def value_and_gradient(loss, class_ids, embeddings, dtype="float64", **call):
    """The loss as a float and its gradient as an array, for embeddings of this dtype."""
    z = keras.ops.convert_to_tensor(np.asarray(embeddings), dtype=dtype)
    if keras.backend.backend() == "jax":
        import jax

        value, gradient = jax.value_and_grad(lambda z: loss(class_ids, z, **call))(z)
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(z)
            value = loss(class_ids, z, **call)
        gradient = tape.gradient(value, z, unconnected_gradients="zero")
    return float(value), np.asarray(gradient)


def compiled(loss):
    """The loss inside a compiled graph."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(loss)
    import tensorflow as tf

    return tf.function(loss)
