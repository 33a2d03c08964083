"""Communication between the processes that train together. Needs TensorFlow."""

import zlib

import keras
import numpy as np
import tensorflow as tf

from experiments.options.errors import UsageError
from experiments.training.cluster import Cluster
from keras_dml._backend.cloning import finalize
from keras_dml._backend.replicas import from_first_worker, on_first_replica
from keras_dml.export.float32 import float32_copy


class Workers:
    """The processes of a cluster. All of them call each method, in the same order.

    Args:
        strategy: the strategy of all processes.
        cluster: the place of this process in the cluster.
    """

    def __init__(self, strategy: tf.distribute.Strategy, cluster: Cluster) -> None:
        self.strategy = strategy
        self.first = cluster.first
        self.several = cluster.size > 1

    def from_first(self, array: np.ndarray) -> np.ndarray:
        """Return the first worker's array. Other workers pass an array of the same shape."""
        if not self.several:
            return array
        return from_first_worker(self.strategy, array, self.first)

    def first_says(self, answer: bool) -> bool:
        """Return the first worker's answer."""
        return bool(self.from_first(np.array(float(answer))))

    def meet(self) -> None:
        """Wait for all workers."""
        self.from_first(np.zeros(1))

    def share(self, model: keras.Model) -> keras.Model:
        """Return the first worker's model on every replica. Other workers pass the same layers."""
        if self.strategy.num_replicas_in_sync == 1:
            return model
        with self.strategy.scope():
            copy = float32_copy(model)
        for variable in copy.variables:
            variable.assign(self.from_first(variable.numpy()))
        finalize(copy)
        return copy

    def check_same(self, what: str, data: bytes) -> None:
        """Raise `UsageError` on every worker unless `data` is the same on all workers."""
        if not self.several:
            return
        # Add 1, because all replicas but a worker's first replica send 0.
        checksums = self.strategy.gather(
            on_first_replica(self.strategy, np.array([zlib.crc32(data) + 1])), axis=0
        )
        checksums = [number for number in checksums.numpy().tolist() if number]
        if len(set(checksums)) > 1:
            raise UsageError(
                f"{what} must be the same on all workers, but got the checksums {checksums}."
            )
