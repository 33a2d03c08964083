"""Dropout with one mask for the global batch."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from keras_dml._backend.replicas import place_among_replicas
from keras_dml._common.types import Tensor

# First row and number of rows of the batch whose chunk the inputs are. Not an argument of the
# layer, because a model has other layers between its inputs and this one. Not an attribute of the
# layer, because each replica calls it in its thread.
_CHUNK: contextvars.ContextVar[tuple[Any, Any] | None] = contextvars.ContextVar(
    "_CHUNK", default=None
)


@contextlib.contextmanager
def on_chunk(first_row: Tensor | int, rows: Tensor | int) -> Iterator[None]:
    """Call `GlobalBatchDropout` on a chunk of the replica's batch within a `with` block.

    The block applies to calls in this thread.

    Args:
        first_row: First row of the chunk in the batch.
        rows: Number of rows in the batch.
    """
    token = _CHUNK.set((first_row, rows))
    try:
        yield
    finally:
        _CHUNK.reset(token)


@keras.saving.register_keras_serializable("keras_dml")
class GlobalBatchDropout(keras.layers.Dropout):
    """Dropout with one mask for the global batch, for any number of replicas or chunks.

    Keras draws the same mask on every replica, because their seeds are equal. Here each replica
    draws the whole mask, as one device would, and takes its rows. All replicas must have the same
    number of rows. `CachedGradients`, which computes a batch in chunks, gives each chunk its rows
    of the batch's mask. The arguments are the arguments of `keras.layers.Dropout`.

    Examples:
        >>> layer = GlobalBatchDropout(0.5, seed=0)
        >>> float(np.max(layer(np.ones([4, 8], "float32"), training=True)))
        2.0
    """

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        """Set a fraction `rate` of the inputs to 0 and scale the others to compensate."""
        shape = ops.shape(inputs)
        replica, replicas = place_among_replicas()
        chunk = _CHUNK.get()
        is_whole = replicas == 1 and chunk is None
        if not training or self.rate == 0 or is_whole:
            return super().call(inputs, training=training)
        first_row, rows = chunk or (0, shape[0])
        ones = ops.ones((replicas * rows, *shape[1:]), dtype=inputs.dtype)
        mask = keras.random.dropout(ones, self.rate, seed=self.seed_generator)
        first = replica * rows + first_row, *[0] * (len(shape) - 1)
        return inputs * ops.slice(mask, first, shape)
