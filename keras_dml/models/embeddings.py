"""What a head or a wrapper asks of an embedding model."""

from typing import Any

import keras

from keras_dml._backend.cloning import check_symbolic_model, ends_of
from keras_dml._common.checks import shown
from keras_dml._common.errors import ArgumentError
from keras_dml._common.types import Tensor


def check_embedding_model(name: str, model: object) -> int | None:
    """Check that `model` is a trainable embedding model, and return d if it is known.

    Args:
        name: Name of the argument, for the message.
        model: Value of the argument.

    Raises:
        ValueError: The model is not a built `keras.Model`, or its output is not exactly `[n, d]`.
    """
    # The output shape of a subclassed model is unknown, and is checked when it is called.
    shape = getattr(model, "output_shape", (None, None))
    built = isinstance(model, keras.Model) and model.built
    if not built or not isinstance(shape, tuple) or len(shape) != 2:
        state = f"with output shape {shape}" if built else "which is not built"
        raise ArgumentError(
            f"{name} must be a built keras.Model with embeddings [n, d] as its only output, but "
            f"got {shown(model)}, {state}."
        )
    return shape[1]


def symbolic_embedding(embedding: object) -> tuple[Any, Tensor]:
    """Return the inputs and the embeddings of an embedding model, for a head that follows it.

    Raises:
        TypeError: As in `check_symbolic_model`.
        ValueError: The output is not exactly embeddings `[n, d]`.
    """
    check_symbolic_model("embedding", embedding)
    inputs, outputs = ends_of(embedding)
    shape = getattr(outputs, "shape", None)
    if shape is None or len(shape) != 2:
        received = "several outputs" if shape is None else f"output shape {tuple(shape)}"
        raise ArgumentError(f"embedding must give embeddings [n, d], but got {received}.")
    return inputs, outputs
