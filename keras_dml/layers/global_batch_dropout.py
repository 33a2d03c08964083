"""Dropout with one mask for the global batch."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from keras_dml._backend.replicas import place_among_replicas
from keras_dml._common.types import Tensor


@keras.saving.register_keras_serializable("keras_dml")
class GlobalBatchDropout(keras.layers.Dropout):
    """Dropout with one mask for the global batch, for any number of replicas or chunks.

    Keras draws the same mask on every replica, because their seeds are equal. Here each replica
    draws the whole mask, as one device would, and takes its rows. All replicas must have the same
    number of rows. A model that computes a batch in chunks, such as `CachedGradients`, calls the
    layer within `on_chunk`. The arguments are the arguments of `keras.layers.Dropout`.

    Examples:
        >>> layer = GlobalBatchDropout(0.5, seed=0)
        >>> float(np.max(layer(np.ones([4, 8], "float32"), training=True)))
        2.0
    """

    # First row and number of rows of the batch whose chunk the inputs are.
    _chunk: tuple[Any, Any] | None = None

    @contextlib.contextmanager
    def on_chunk(self, first_row: Tensor | int, rows: Tensor | int) -> Iterator[None]:
        """Take the inputs as a chunk of the replica's batch within a `with` block.

        Args:
            first_row: First row of the chunk in the batch.
            rows: Number of rows in the batch.
        """
        self._chunk = first_row, rows
        try:
            yield
        finally:
            self._chunk = None

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        """Set a fraction `rate` of the inputs to 0 and scale the others to compensate."""
        shape = ops.shape(inputs)
        replica, replicas = place_among_replicas()
        is_whole = replicas == 1 and self._chunk is None
        if not training or self.rate == 0 or is_whole:
            return super().call(inputs, training=training)
        first_row, rows = self._chunk or (0, shape[0])
        ones = ops.ones((replicas * rows, *shape[1:]), dtype=inputs.dtype)
        mask = keras.random.dropout(ones, self.rate, seed=self.seed_generator)
        first = replica * rows + first_row, *[0] * (len(shape) - 1)
        return inputs * ops.slice(mask, first, shape)
