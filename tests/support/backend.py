"""A loss on the current backend of Keras: its value, gradient, and parts, eager and compiled.

JAX compiles each operation again for each shape. For this reason, whole calls are compiled on JAX:
one compilation in place of a hundred. If called directly, a loss runs operation by operation.
Batches of one loss in a row share the compiled function, so do not change a loss between them.
"""

import functools

import keras
import numpy as np


@functools.lru_cache(1)
def _on_jax(loss):
    """Compile the value and the gradient once for all batches of a shape."""
    import jax

    return jax.jit(jax.value_and_grad(loss, argnums=1))


@functools.lru_cache(1)
def _parts_on_jax(loss):
    """Compile the parts once for all batches of a shape."""
    return compiled(lambda class_ids, embeddings: loss.parts(class_ids, embeddings))


def value_and_gradient(loss, class_ids, embeddings, dtype="float64", **call):
    """Return the loss as a float and its gradient as an array, for embeddings of this dtype."""
    z = keras.ops.convert_to_tensor(np.asarray(embeddings), dtype=dtype)
    if keras.backend.backend() == "jax":
        value, gradient = _on_jax(loss)(class_ids, z, **call)
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
    call = _parts_on_jax(loss) if keras.backend.backend() == "jax" else loss.parts
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
