"""Every private part of Keras and TensorFlow that we need, under names of our own.

Nothing else in this package touches one; `tests/keras_dml/test_private.py` looks at each, and says
which is gone or changed when an upgrade moves it.
"""

import functools
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.models.functional import Functional

__all__ = [
    "NEEDED",
    "BuildsOnBatch",
    "Functional",
    "clipped",
    "flat_layers",
    "in_stateless_scope",
    "iterator_function",
    "lambda_output_shape",
    "made_under",
    "merge_call",
    "rematerialize",
    "replace_clipping",
    "summed_over_replicas",
    "variable_index",
]


def merge_call(function: Callable[..., Any], strategy: Any, *arguments: Any) -> Any:
    """`function(strategy, *arguments)` once for all replicas, where the strategy can do so.

    `tf.__internal__.distribute.interim.maybe_merge_call`: the public `ReplicaContext.merge_call` is
    refused by strategies that run their replicas in one process each.
    """
    import tensorflow as tf  # a strategy is there, so TensorFlow is

    call = tf.__internal__.distribute.interim.maybe_merge_call
    return call(function, strategy, *arguments)


def iterator_function(model: keras.Model, step_function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of an iterator that Keras' `fit` would call: `keras.Model._make_function`.

    Args:
        model: a model, or what stands for one: it has `distribute_strategy`, `run_eagerly`,
            `jit_compile` and `steps_per_execution`.
        step_function: of a batch.
    """
    return keras.Model._make_function(model, step_function)


def made_under(model: keras.Model) -> Any:
    """The tf.distribute strategy in whose scope a model was made, None outside any.

    `keras.Model._distribute_strategy`: the public `distribute_strategy` gives the default one then.
    """
    return model._distribute_strategy


def variable_index(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> int:
    """The place of a variable among those that `optimizer.build` was given.

    `Optimizer._get_variable_index`: `update_step` is given the variable alone.
    """
    return optimizer._get_variable_index(variable)


def clipped(optimizer: keras.optimizers.Optimizer, gradients: list[Any]) -> list[Any]:
    """The gradients as the optimizer's class clips them: `Optimizer._clip_gradients`."""
    return type(optimizer)._clip_gradients(optimizer, gradients)


def summed_over_replicas(
    optimizer: keras.optimizers.Optimizer, gradients_and_variables: list[tuple[Any, Any]]
) -> list[tuple[Any, Any]]:
    """The same with gradients summed over replicas: TensorFlow's `_all_reduce_sum_gradients`."""
    return type(optimizer)._all_reduce_sum_gradients(optimizer, gradients_and_variables)


def replace_clipping(
    optimizer: keras.optimizers.Optimizer,
    clip: Callable[..., list[Any]],
    summed: Callable[..., list[tuple[Any, Any]]],
) -> None:
    """Let this one optimizer call functions of ours for `clipped` and `summed_over_replicas`."""
    optimizer._clip_gradients = types.MethodType(clip, optimizer)
    optimizer._all_reduce_sum_gradients = types.MethodType(summed, optimizer)


def flat_layers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """A layer and every layer within it: `Layer._flatten_layers`; `Model.layers` is one level."""
    return layer._flatten_layers()


def lambda_output_shape(layer: keras.layers.Lambda) -> Any:
    """What a Lambda was given as `output_shape`: its `_output_shape`."""
    return layer._output_shape


def rematerialize(layer: keras.layers.Layer) -> None:
    """Let a layer that is there already compute as one that was made in a `keras.RematScope`.

    Its `_remat_mode`: a scope says so of layers that are made within it, all of those in a block as
    well as the block, and each would be computed anew for the one around it.
    """
    with keras.RematScope(mode="full"):
        layer._remat_mode = keras.layers.Identity()._remat_mode

    def remade(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        # TensorFlow's graphs take no keyword, such as `training`, to a gradient of one's own.
        computed_anew = keras.remat(functools.partial(call, **kwargs))
        return lambda *args, **kwargs: computed_anew(*args)

    layer.rematerialized_call = remade


class BuildsOnBatch:
    """For a `keras.Model` that itself finds the batch that `fit` builds an unbuilt model on.

    Stands before `keras.Model` among the bases. Overrides `_maybe_symbolic_build`, which `fit` and
    `evaluate` call with an iterator and `train_on_batch` and the like with a batch.
    """

    def first_batch(self, iterator: Any) -> Any:
        """A batch of Keras' iterator over epochs, or None: Keras is left to find it itself."""
        raise NotImplementedError

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        if iterator is not None:
            batch = self.first_batch(iterator)
            if batch is not None:
                iterator, data_batch = None, batch
        super()._maybe_symbolic_build(iterator=iterator, data_batch=data_batch)  # type: ignore[misc]


class Needed(NamedTuple):
    """A private name, and how we call it.

    Attributes:
        name: in full, from the package on.
        parameters: of the function, those that we give among them; None: it is none.
        of_instance: an attribute that instances alone have.
    """

    name: str
    parameters: tuple[str, ...] | None = None
    of_instance: bool = False


NEEDED = (
    Needed("keras.src.models.functional.Functional", ("inputs", "outputs", "name")),
    Needed("keras.src.backend.common.stateless_scope.in_stateless_scope", ()),
    Needed("keras.Model._make_function", ("self", "step_function")),
    Needed("keras.Model._maybe_symbolic_build", ("self", "iterator", "data_batch")),
    Needed("keras.Model._distribute_strategy", of_instance=True),
    Needed("keras.optimizers.Optimizer._get_variable_index", ("self", "variable")),
    Needed("keras.optimizers.Optimizer._clip_gradients", ("self", "grads")),
    Needed("keras.optimizers.Optimizer._all_reduce_sum_gradients", ("self", "grads_and_vars")),
    Needed("keras.layers.Layer._flatten_layers", ("self",)),
    Needed("keras.layers.Lambda._output_shape", of_instance=True),
    Needed("keras.layers.Layer._remat_mode", of_instance=True),
    Needed(
        "tensorflow.__internal__.distribute.interim.maybe_merge_call",
        ("fn", "strategy", "args", "kwargs"),
    ),
)
"""All of them, on the TensorFlow backend."""
