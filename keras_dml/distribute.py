"""Candidates from all replicas; needs TensorFlow only when a tf.distribute strategy is in use.

A loss over pairs compares the images of its own replica (the anchors) with the images of *all*
replicas (the candidates). Keras divides each replica's mean by the number of replicas and sums
the gradients over them, so the value and the gradient are those of the global batch on one device.
"""

import keras
from keras import ops


def gather_candidates(x):
    """The rows of `x` on every replica, one replica after the other, and where our own begin.

    Differentiable: the gradient of a replica's rows is summed over all replicas that used them.
    Outside a strategy, or with one replica, `x` itself comes back and nothing is computed.

    Args:
        x: tensor `[n, ...]`, the same shape on every replica: batches must divide by the number of
            replicas, and a last partial one be dropped, or TensorFlow fails in the reduction.

    Returns:
        `(gathered, offset)`: tensor `[replicas * n, ...]`, and the row in it of our first row.

    References: the exchange by summing zero-padded slices is SimCLR's (TensorFlow 2 code); unlike
    `ReplicaContext.all_gather` it works under every strategy, several workers included.
    """
    context = _replica_context()
    if context is None:
        return x, 0
    import tensorflow as tf

    replicas = context.num_replicas_in_sync
    replica = tf.cast(context.replica_id_in_sync_group, tf.int32)
    rows = ops.shape(x)[0]
    slots = tf.reshape(
        tf.one_hot(replica, replicas, dtype=x.dtype), [replicas] + [1] * len(x.shape)
    )
    padded = slots * x[None]
    summed = context.all_reduce(tf.distribute.ReduceOp.SUM, padded)
    return tf.reshape(summed, [replicas * rows, *x.shape[1:]]), replica * rows


def _replica_context():
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    return context if context is not None and context.num_replicas_in_sync > 1 else None
