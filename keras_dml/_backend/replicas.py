"""Communication between replicas. Needs TensorFlow only in a tf.distribute strategy.

A loss over pairs compares the images of its replica (the anchors) with the images of *all* replicas
(the candidates). Keras divides each replica's mean by the number of replicas and sums the gradients
over them. Value and gradient therefore equal the values for the global batch on one device.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_dml._backend import private
from keras_dml._common.errors import ArgumentError
from keras_dml._common.types import Tensor


def gather_candidates(x: Tensor) -> tuple[Tensor, Tensor | int]:
    """Gather the rows of `x` from all replicas in order, and return the index of our first row.

    Differentiable: the gradient of a replica's rows is summed over all replicas that used them.
    Outside a strategy, or with one replica, `x` is returned unchanged.

    Args:
        x: Tensor `[n, ...]` with the same shape on every replica. The global batch must be a
            multiple of the number of replicas, and a partial last batch must be dropped. (Replicas
            on other machines cannot be checked. TensorFlow fails in their reduction:
            `Shape mismatch in the collective instance`.)

    Returns:
        `(gathered, offset)`: tensor `[replicas * n, ...]`, and the index of our first row in it.

    Raises:
        ValueError: Replicas of this machine have different numbers of rows. If the numbers are
            known only when the graph runs, TensorFlow raises `InvalidArgumentError` with the same
            text.

    References: the exchange by summing zero-padded slices is from SimCLR (TensorFlow 2 code).
    Unlike `ReplicaContext.all_gather`, it works under every strategy, including several workers.
    """
    context = _replica_context()
    if context is None:
        return x, 0
    import tensorflow as tf

    checks = private.merge_call(_equal_rows, context.strategy, x)
    replica, replicas = place_among_replicas()
    rows, *others = ops.shape(x)
    slots = tf.reshape(
        tf.one_hot(replica, replicas, dtype=x.dtype), [replicas] + [1] * len(x.shape)
    )
    with tf.control_dependencies(checks):
        padded = slots * x[None]
    summed = context.all_reduce(tf.distribute.ReduceOp.SUM, padded)
    return tf.reshape(summed, [replicas * rows, *others]), replica * rows


def place_among_replicas() -> tuple[Tensor | int, int]:
    """Return this code's replica and the number of replicas: `(0, 1)` outside a strategy."""
    context = _replica_context()
    if context is None:
        return 0, 1
    import tensorflow as tf

    replica = tf.cast(context.replica_id_in_sync_group, tf.int32)
    return replica, context.num_replicas_in_sync


def sum_over_replicas(x: Tensor) -> Tensor:
    """Sum a tensor over the replicas. Returns `x` on one device."""
    context = _replica_context()
    if context is None:
        return x
    import tensorflow as tf

    return context.all_reduce(tf.distribute.ReduceOp.SUM, x)


def from_first_worker(strategy: Any, array: np.ndarray, first: bool | None = None) -> np.ndarray:
    """Return the first worker's array on all workers of a `tf.distribute` strategy.

    Every worker calls this function outside the replicas. With one worker, returns `array`.

    Args:
        strategy: The strategy, or None on other backends.
        array: The array. Other workers pass an array of the same shape and dtype.
        first: Whether this is the first worker. None: as the strategy's `TF_CONFIG` specifies.
    """
    resolver = getattr(strategy, "cluster_resolver", None)
    if resolver is None:
        return array
    workers = resolver.cluster_spec().as_dict()
    if sum(map(len, workers.values())) < 2:
        return array
    if first is None:
        leader = "chief" if "chief" in workers else "worker"
        first = (resolver.task_type, resolver.task_id) == (leader, 0)
    sent = array if first else np.zeros_like(array)
    if sent.dtype.kind != "f":
        sent = sent.astype("int64")  # TensorFlow cannot send other integers
    received = strategy.reduce("SUM", on_first_replica(strategy, sent), axis=None)
    return received.numpy().astype(array.dtype)


def on_first_replica(strategy: Any, array: np.ndarray) -> Any:
    """Distribute the array to this worker's first replica, and zeros to its other replicas."""
    import tensorflow as tf

    parts = iter([array])
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(next(parts, np.zeros_like(array)))
    )


def _replica_context() -> Any:
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    return context if context is not None and context.num_replicas_in_sync > 1 else None


def _equal_rows(strategy: Any, x: Tensor) -> list[Any]:
    """Return checks that the replicas of this machine have equal numbers of rows."""
    import tensorflow as tf

    parts = strategy.experimental_local_results(x)
    rows = [part.shape[0] for part in parts]
    wanted = (
        f"The global batch must be a multiple of the {strategy.num_replicas_in_sync} replicas, so "
        "that all have the same number of rows"
    )
    advice = "Drop a last partial batch with drop_remainder=True."
    if None not in rows:
        if len(set(rows)) > 1:
            raise ArgumentError(f"{wanted}, but got replicas with {rows} rows. {advice}")
        return []
    counts = tf.stack([tf.shape(part)[0] for part in parts])
    check = tf.debugging.assert_equal(counts, counts[0], f"{wanted}. {advice} Rows:")
    return [] if check is None else [check]
