"""Checks of layers that follow the embeddings."""

import keras

from keras_dml._common.errors import ArgumentError, argument_error


def check_full_precision(layer: keras.Layer) -> None:
    """Raise `ValueError` unless a layer computes in float32 or float64."""
    if layer.compute_dtype not in ("float32", "float64"):
        advice = "Half precision merges cosines."
        raise argument_error("dtype", "float32 or float64", layer.compute_dtype, advice=advice)


def embedding_size(input_shape: tuple[int | None, ...]) -> int:
    """Return d of inputs `[n, d]`.

    Raises:
        ValueError: The inputs have another rank, or an unknown d.
    """
    if len(input_shape) != 2 or input_shape[1] is None:
        raise ArgumentError(
            f"inputs must be embeddings [n, d] of a known d, but got shape {tuple(input_shape)}."
        )
    return input_shape[1]
