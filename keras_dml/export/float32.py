"""Copies of models that compute in float32."""

from __future__ import annotations

from typing import Any

import keras

from keras_dml._backend.cloning import (
    all_layers,
    check_symbolic_model,
    copied,
    ends_of,
    has_own_config,
    same_layer,
)
from keras_dml._common.errors import ArgumentError
from keras_dml._common.extras import TensorFlow

tf = TensorFlow("export_saved_model or float32_copy")

_OTHER_FLOATS = ("mixed_float16", "mixed_bfloat16", "float16", "bfloat16", "float64")


def _in_float32(config: dict[str, Any]) -> Any:
    """Replace a floating-point dtype policy in a layer's configuration with float32."""
    kind = str(config.get("class_name", ""))
    name = config.get("config", {}).get("name") if kind.endswith("DTypePolicy") else None
    if kind.endswith("DTypePolicyMap") or name in _OTHER_FLOATS:
        return "float32"
    if config.get("dtype") in _OTHER_FLOATS:
        return {**config, "dtype": "float32"}
    return config


def _float32_input(tensor: keras.KerasTensor) -> keras.KerasTensor:
    """Create a float32 input. Nested models have inputs with the outer model's precision."""
    dtype = "float32" if tensor.dtype in _OTHER_FLOATS else tensor.dtype
    return keras.Input(
        batch_shape=tensor.shape, dtype=dtype, sparse=tensor.sparse, name=tensor.name
    )


def _other_float(layer: keras.Layer) -> str | None:
    """Return a float dtype of the layer other than float32, or None."""
    dtypes = [layer.compute_dtype, layer.variable_dtype, layer.dtype]
    dtypes += [variable.dtype for variable in layer.weights]
    return next((str(dtype) for dtype in dtypes if str(dtype) in _OTHER_FLOATS), None)


def is_float32(model: keras.Model) -> bool:
    """Return whether every layer of `model` computes in float32, and no strategy is in use."""
    if keras.backend.backend() == "tensorflow" and any(
        isinstance(weight.value, tf.distribute.DistributedValues) for weight in model.weights
    ):
        return False
    return all(_other_float(layer) is None for layer in all_layers(model))


def float32_copy(model: keras.Model) -> keras.Model:
    """Copy a model, uncompiled, to compute completely in float32.

    Mixed precision rounds embeddings to 8 or 11 bits. Use the copy for evaluation and serving, to
    get the full precision of the float32 weights. The copy is also independent of the distribution
    strategy of the original.

    Examples:
        >>> inputs = keras.Input((4,))
        >>> model = keras.Model(inputs, keras.layers.Dense(2, dtype="mixed_bfloat16")(inputs))
        >>> float32_copy(model).layers[-1].compute_dtype
        'float32'

    Args:
        model: A built functional or sequential Keras model, possibly nested. Its layers need
            `get_config`. Only layers within wrapper layers need registration.

    Returns:
        A functional model with the same name, layers, weight values, and adapted state, but
        separate variables. Overridden methods of a subclass, such as `train_step`, are not copied.

    Raises:
        ValueError: The model is subclassed or not built, so that its layers are unknown. Or a layer
            cannot be recreated from its configuration, or computes in another precision regardless
            of the configuration (the message names it).
    """
    check_symbolic_model("model", model)
    source = model
    if not has_own_config(model):
        # clone_model would also copy the compilation, and fail for losses that are not registered.
        source = keras.Model(*ends_of(model), name=model.name)
    # Layers that create layers in __init__ or build use the global policy for them.
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32")
    try:
        copy = copied(source, lambda layer: same_layer(layer, _in_float32), _float32_input)
    finally:
        keras.config.set_dtype_policy(policy)
    for layer in all_layers(copy):
        if _other_float(layer):
            raise ArgumentError(
                f"model must have only layers that can compute in float32, but got {layer.path} "
                f"({type(layer).__name__}), which is {_other_float(layer)} regardless of its "
                "configuration."
            )
    return copy
