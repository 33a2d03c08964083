"""A loss on the current backend of Keras: its value, gradient, and parts, eager and compiled.

JAX compiles each operation again for each shape. For this reason, whole calls are compiled on JAX:
one compilation in place of a hundred. If called directly, a loss runs operation by operation.
"""

import functools

import keras
import numpy as np


@functools.lru_cache(1)
def _on_jax(loss, with_parts):
    """Return a compiled function of a loss, the same for the next batch of this loss."""
    import jax

    differentiated = jax.value_and_grad(loss, argnums=1)

    def call(class_ids, z, **more):
        found = differentiated(class_ids, z, **more)
        return (found, loss.parts(class_ids, z)) if with_parts else found

    return jax.jit(call)


def value_gradient_and_parts(loss, class_ids, embeddings, **call):
    """Return the value and the gradient, and the two parts, for embeddings in float64."""
    if keras.backend.backend() != "jax":
        found = value_and_gradient(loss, class_ids, embeddings, **call)
        return found, parts(loss, class_ids, embeddings)
    z = keras.ops.convert_to_tensor(np.asarray(embeddings), dtype="float64")
    (value, gradient), both = _on_jax(loss, True)(class_ids, z, **call)
    return (float(value), np.asarray(gradient)), tuple(map(np.asarray, both))


def value_and_gradient(loss, class_ids, embeddings, dtype="float64", **call):
    """Return the loss as a float and its gradient as an array, for embeddings of this dtype."""
    z = keras.ops.convert_to_tensor(np.asarray(embeddings), dtype=dtype)
    if keras.backend.backend() == "jax":
        value, gradient = _on_jax(loss, False)(class_ids, z, **call)
    elif keras.backend.backend() == "torch":
        z.requires_grad_()
        value = loss(class_ids, z, **call)
        if value.requires_grad:
            value.backward()
        gradient = np.zeros(z.shape) if z.grad is None else z.grad
        value = value.detach()
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(z)
            value = loss(class_ids, z, **call)
        gradient = tape.gradient(value, z, unconnected_gradients="zero")
    return float(value), np.asarray(gradient)


def parts(loss, class_ids, embeddings):
    """Return the tightness and the contrastive part as arrays."""

    def call(class_ids, embeddings):  # new each time: JAX caches compiled functions
        return loss.parts(class_ids, embeddings)

    call = compiled(call) if keras.backend.backend() == "jax" else call
    return tuple(keras.ops.convert_to_numpy(part) for part in call(class_ids, embeddings))


def eager(function):
    return function


def compiled(loss):
    """Compute the loss inside a compiled graph."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(loss)
    if keras.backend.backend() == "torch":
        return loss  # PyTorch has no graphs
    import tensorflow as tf

    return tf.function(loss)
