"""Every private part of Keras and TensorFlow that we need, under names of our own.

Nothing else in this package touches one; `tests/keras_dml/test_private.py` looks at each, and says
which is gone or changed when an upgrade moves it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras.src.models.functional import Functional

__all__ = [
    "NEEDED",
    "BuildsOnBatch",
    "Functional",
    "iterator_function",
    "made_under",
    "merge_call",
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
    Needed("keras.Model._make_function", ("self", "step_function")),
    Needed("keras.Model._maybe_symbolic_build", ("self", "iterator", "data_batch")),
    Needed("keras.Model._distribute_strategy", of_instance=True),
    Needed("keras.optimizers.Optimizer._get_variable_index", ("self", "variable")),
    Needed(
        "tensorflow.__internal__.distribute.interim.maybe_merge_call",
        ("fn", "strategy", "args", "kwargs"),
    ),
)
"""All of them, on the TensorFlow backend."""
