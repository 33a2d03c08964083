"""What the processes that train together tell each other; needs TensorFlow."""

import zlib

import keras
import numpy as np
import tensorflow as tf

from experiments.options.errors import UsageError
from experiments.training.cluster import Cluster
from keras_dml._backend.cloning import finalize
from keras_dml.export.float32 import float32_copy


class Workers:
    """The processes of a cluster. Each method is called by all of them, in the same order.

    Args:
        strategy: the strategy that they share.
        cluster: `Cluster`, this process' place among them.
    """

    def __init__(self, strategy: tf.distribute.Strategy, cluster: Cluster) -> None:
        self.strategy = strategy
        self.first = cluster.first
        self.several = cluster.size > 1

    def from_first(self, array: np.ndarray) -> np.ndarray:
        """The array of the first worker; the others give one of the same shape and type."""
        if not self.several:
            return array
        sent = array if self.first else np.zeros_like(array)
        if sent.dtype.kind != "f":
            sent = sent.astype("int64")  # TensorFlow sends no others
        received = self.strategy.reduce("SUM", self._once(sent), axis=None)
        return received.numpy().astype(array.dtype)

    def first_says(self, answer: bool) -> bool:
        """The answer of the first worker."""
        return bool(self.from_first(np.array(float(answer))))

    def meet(self) -> None:
        """Return when every worker has come here."""
        self.from_first(np.zeros(1))

    def share(self, model: keras.Model) -> keras.Model:
        """The first worker's model on every replica; the others give one of the same layers."""
        if self.strategy.num_replicas_in_sync == 1:
            return model
        with self.strategy.scope():
            copy = float32_copy(model)
        for variable in copy.variables:
            variable.assign(self.from_first(variable.numpy()))
        finalize(copy)
        return copy

    def check_same(self, what: str, data: bytes) -> None:
        """ValueError on every worker unless `data`, bytes, is the same on all."""
        if not self.several:
            return
        # Above 0, which replicas beyond a worker's first one give.
        checksums = self.strategy.gather(self._once(np.array([zlib.crc32(data) + 1])), axis=0)
        checksums = [number for number in checksums.numpy().tolist() if number]
        if len(set(checksums)) > 1:
            raise UsageError(
                f"{what} must be the same on all workers. Received: their checksums {checksums}"
            )

    def _once(self, array: np.ndarray) -> tf.distribute.DistributedValues:
        """The array on this worker's first replica, zeros on its others."""
        parts = iter([array])
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(next(parts, np.zeros_like(array)))
        )
