"""Copies of functional and sequential models, including the state of all layers."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable
from typing import Any

import keras

from keras_dml._backend.private import Functional, flat_layers, lambda_output_shape
from keras_dml._common.errors import ArgumentError, ArgumentTypeError, argument_error


def all_layers(layer: keras.Layer) -> list[keras.Layer]:
    """Return a layer or model and all layers within it, at any depth, each once and outer first.

    `Model.layers` contains only the first level, and layers have no such attribute, so wrapped and
    subclassed layers would be missed.
    """
    return flat_layers(layer)


def freeze(layer: keras.Layer) -> None:
    """Freeze all of a layer or model, at any depth.

    Setting `layer.trainable = False` does not reach the inner layers of a layer that is already
    frozen, such as a subclassed layer from a file, whose inner layers were recreated: TensorFlow
    skips it.
    """
    for each in all_layers(layer):
        each.trainable = False


def ends_of(model: keras.Model) -> tuple[Any, Any]:
    """Return the inputs and outputs of a built functional or sequential model, with structure."""
    # `input` and `output` of a Sequential are from a call of it.
    if isinstance(model, keras.Sequential):
        return model.inputs[0], model.outputs[0]
    return model.input, model.output


def check_symbolic_model(name: str, model: object) -> None:
    """Raise an error unless `model` has inputs and outputs, so that layers can follow it.

    Raises:
        TypeError: The model is not a Keras model, or is not built.
    """
    if not isinstance(model, keras.Model) or not getattr(model, "outputs", None):
        wanted = "a built functional or sequential keras.Model"
        raise argument_error(name, wanted, model, ArgumentTypeError)


def copied(
    model: keras.Model,
    copy_layer: Callable[[keras.Layer], keras.Layer],
    change_input: Callable[[keras.KerasTensor], keras.KerasTensor] | None = None,
) -> keras.Model:
    """Copy a functional or sequential model with new layers, weights, and state.

    Nested models are copied in the same way at any depth. A layer or model that is used more than
    once is copied once.

    Args:
        model: A functional or a sequential model. The latter need not be built.
        copy_layer: Function that creates a new layer from a layer that is not such a model, see
            `same_layer`.
        change_input: None, or a function from a `KerasTensor` to the `keras.Input` that replaces
            it.

    Raises:
        ValueError: The model is neither, or a layer's copy does not accept its state.
    """
    if not isinstance(model, (Functional, keras.Sequential)):
        wanted = "a functional or sequential keras.Model"
        raise argument_error("model", wanted, model)
    copies: dict[int, tuple[keras.Operation, keras.Operation]] = {}
    wholes: set[int] = set()

    def copy_of(operation: keras.Operation) -> keras.Operation:
        if id(operation) not in copies:
            if isinstance(operation, (Functional, keras.Sequential)):
                new = copy_of_part(operation)
            elif isinstance(operation, keras.Layer):
                new = copy_layer(operation)
            else:
                new = operation  # a keras.ops operation has no state
            copies[id(operation)] = operation, new
        return copies[id(operation)][1]

    def copy_of_part(part: keras.Model) -> keras.Model:
        before = dict(copies)
        try:
            return copy_of_model(_without_compilation(part))
        except ArgumentError as of_a_layer:
            if not has_own_config(part):
                raise
            # One of its layers needs more than its configuration. The configuration of the model
            # has it.
            copies.clear()
            copies.update(before)
            wholes.add(id(part))
            try:
                return copy_layer(part)
            except ArgumentError:
                raise of_a_layer from None

    def copy_of_model(part: keras.Model) -> keras.Model:
        inputs = None
        if change_input is not None and getattr(part, "inputs", None):
            inputs = keras.tree.map_structure(change_input, ends_of(part)[0])
        return keras.models.clone_model(part, input_tensors=inputs, clone_function=copy_of)

    copy = copy_of_part(model) if has_own_config(model) else copy_of_model(model)
    copies[id(model)] = model, copy
    # Models come after their parts, and setting their `trainable` changes all parts.
    for old, new in reversed(copies.values()):
        if isinstance(old, (Functional, keras.Sequential)):
            _copy_trainable(old, new)
    for old, new in copies.values():
        if isinstance(old, keras.Layer) and (
            id(old) in wholes or not isinstance(old, (Functional, keras.Sequential))
        ):
            copy_state(old, new)
    before, after = _number_of_weights(model), _number_of_weights(copy)
    if before != after:
        raise ArgumentError(
            f"model {model.name!r} cannot be copied: it has {before} weights and its "
            f"copy {after}. Move the model's weights into a layer."
        )
    return copy


def has_own_config(model: keras.Model) -> bool:
    """Return whether the class of a functional model defines its configuration, as in KerasHub."""
    owner = next(one for one in type(model).__mro__ if "get_config" in vars(one))
    return owner.__module__.partition(".")[0] != "keras"


def _number_of_weights(model: keras.Model) -> int:
    """Count the weights without low-rank additions, which Keras merges into kernels on saving."""
    added = sum(
        variable.name.startswith("lora_")
        for layer in all_layers(model)
        if getattr(layer, "lora_enabled", False)
        for variable in layer.weights
    )
    return len(model.weights) - added


def _without_compilation(model: keras.Model) -> keras.Model:
    """Return an uncompiled model with the same layers: losses may not be serializable."""
    if not model.compiled or not getattr(model, "inputs", None):
        return model
    return keras.Model(*ends_of(model), name=model.name)


def same_layer(
    layer: keras.Layer,
    change: Callable[[dict[str, Any]], dict[str, Any]] = lambda config: config,
) -> keras.Layer:
    """Create a new layer of the same class from its configuration.

    `change` replaces each dictionary in the configuration, see `changed_config`.

    A `Lambda` gets the same Python function, unless the function can share variables with the
    original.

    Raises:
        ValueError: The layer cannot be recreated (the message has its name and the reason).
    """
    if type(layer) is keras.layers.Lambda:
        return _same_lambda(layer, change)
    try:
        return type(layer).from_config(changed_config(layer.get_config(), change))
    except (AttributeError, KeyError, NotImplementedError, TypeError, ValueError) as error:
        lambdas = [one.name for one in all_layers(layer) if isinstance(one, keras.layers.Lambda)]
        if lambdas:
            advice = f"it has Python code in the Lambda {lambdas[0]!r}. Convert it to a Layer."
        else:
            advice = f"its class needs get_config() and from_config() ({_first_line(error)})."
        raise ArgumentError(f"layer {_described(layer)} cannot be copied: {advice}") from error


def changed_config(config: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """Replace each dictionary in a configuration, inner ones first, by the result of `change`."""
    if isinstance(config, dict):
        return change({key: changed_config(value, change) for key, value in config.items()})
    if isinstance(config, (list, tuple)):
        return type(config)(changed_config(value, change) for value in config)
    return config


def of_any_backend(config: dict[str, Any]) -> dict[str, Any]:
    """Replace PyTorch's optimizers in a configuration with the classes of `keras.optimizers`.

    On PyTorch, `keras.optimizers.Adam` creates an object of a private subclass. Keras writes the
    subclass to files, and other backends cannot train with it or do not find it.
    """

    def public(part: dict[str, Any]) -> dict[str, Any]:
        if not str(part.get("module")).startswith("keras.src.backend.torch.optimizers."):
            return part
        return {**part, "module": "keras.optimizers", "registered_name": None}

    return changed_config(config, public)


def _same_lambda(
    layer: keras.layers.Lambda, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> keras.layers.Lambda:
    functions = [layer.function, layer.mask, lambda_output_shape(layer)]
    for function in filter(callable, functions):
        # A method, a partial, or an object can contain variables, as a closure can.
        plain = inspect.isfunction(function) or inspect.isbuiltin(function)
        if not plain or getattr(function, "__closure__", None):
            raise ArgumentError(
                f"layer {_described(layer)} cannot be copied: its Python code refers to objects "
                "that the copy would share. Convert it to a Layer with get_config()."
            )
    config = changed_config(super(keras.layers.Lambda, layer).get_config(), change)
    return keras.layers.Lambda(
        layer.function,
        output_shape=lambda_output_shape(layer),
        mask=layer.mask,
        arguments=dict(layer.arguments),
        **config,
    )


def copy_state(source: keras.Layer, target: keras.Layer) -> None:
    """Copy all state that a file would contain to a layer or model of the same structure.

    `set_weights(get_weights())` is not enough: a `Normalization` computes with constants that it
    derives from its weights on loading, and vocabularies are not weights.

    Raises:
        ValueError: The target has another structure.
    """
    sources, targets = all_layers(source), all_layers(target)
    if len(sources) != len(targets):
        raise ArgumentError(
            f"layer {_described(source)} cannot be copied: it has {len(sources) - 1} inner layers, "
            f"and a layer from its configuration has {len(targets) - 1}."
        )
    for old, new in zip(sources, targets):
        _copy_trainable(old, new)
        try:
            state = _Arrays()
            old.save_own_variables(state)
            new.load_own_variables(state)
        except (KeyError, ValueError) as error:
            raise ArgumentError(
                f"layer {_described(source)} cannot be copied: the weights of {_described(old)} do "
                f"not fit a layer from its configuration ({_first_line(error)})."
            ) from error
        if hasattr(old, "save_assets"):
            with tempfile.TemporaryDirectory() as folder:
                old.save_assets(folder)
                new.load_assets(folder)


def finalize(model: keras.Model) -> None:
    """Let every layer of a model update the state that it derives from its variables."""
    for layer in all_layers(model):
        if hasattr(layer, "finalize_state"):
            state = _Arrays()
            layer.save_own_variables(state)
            layer.load_own_variables(state)


class _Arrays(dict):
    """A store for `save_own_variables` that contains arrays, not variables or their devices."""

    def __setitem__(self, key: str, value: object) -> None:
        super().__setitem__(key, keras.ops.convert_to_numpy(value))


def _copy_trainable(source: keras.Layer, target: keras.Layer) -> None:
    if source.trainable != target.trainable:
        target.trainable = source.trainable


def _described(layer: keras.Layer) -> str:
    return f"{layer.name!r} ({type(layer).__name__})"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
