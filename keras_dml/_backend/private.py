"""All private parts of Keras, TensorFlow, and Python that this package uses, under public names.

The rest of the package uses none of them, which `tests/test_import_rules.py` checks.
"""

import functools
import pickle
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras.src.backend.common.masking import get_keras_mask as get_keras_mask
from keras.src.backend.common.stateless_scope import in_stateless_scope as in_stateless_scope
from keras.src.models.functional import Functional as Functional
from keras.src.trainers.data_adapters.data_adapter import DataAdapter as DataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

# Written in Python. `pickle.Unpickler`, in C, reserves memory for any index that a file names.
PythonUnpickler = pickle._Unpickler


def merge_call(function: Callable[..., Any], strategy: Any, *arguments: Any) -> Any:
    """Call `function(strategy, *arguments)` once for all replicas, if the strategy supports it.

    Wraps `tf.__internal__.distribute.interim.maybe_merge_call`, because strategies with one process
    per replica refuse the public `ReplicaContext.merge_call`.
    """
    import tensorflow as tf  # a strategy exists, so TensorFlow is installed

    call = tf.__internal__.distribute.interim.maybe_merge_call
    return call(function, strategy, *arguments)


def iterator_function(model: keras.Model, step_function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of an iterator that `fit` calls: `keras.Model._make_function`.

    Args:
        model: A model, or an object with `distribute_strategy`, `run_eagerly`, `jit_compile`, and
            `steps_per_execution`.
        step_function: Function of a batch.
    """
    return keras.Model._make_function(model, step_function)


def variable_index(optimizer: keras.Optimizer, variable: keras.Variable) -> int:
    """Return the index of a variable among the variables of `optimizer.build`.

    Calls `Optimizer._get_variable_index`, because `update_step` receives only the variable.
    """
    return optimizer._get_variable_index(variable)


def clipped(optimizer: keras.Optimizer, gradients: list[Any]) -> list[Any]:
    """Clip the gradients as the optimizer's class does: `Optimizer._clip_gradients`."""
    return type(optimizer)._clip_gradients(optimizer, gradients)


def summed_over_replicas(
    optimizer: keras.Optimizer, gradients_and_variables: list[tuple[Any, Any]]
) -> list[tuple[Any, Any]]:
    """Sum the gradients over replicas: `_all_reduce_sum_gradients` of TensorFlow's optimizer."""
    return type(optimizer)._all_reduce_sum_gradients(optimizer, gradients_and_variables)


def replace_clipping(
    optimizer: keras.Optimizer,
    clip: Callable[..., list[Any]],
    summed: Callable[..., list[tuple[Any, Any]]],
) -> None:
    """Replace `clipped` and `summed_over_replicas` of one optimizer with other functions."""
    optimizer._clip_gradients = types.MethodType(clip, optimizer)
    optimizer._all_reduce_sum_gradients = types.MethodType(summed, optimizer)


def flat_layers(layer: keras.Layer) -> list[keras.Layer]:
    """Return a layer and all layers within it: `Layer._flatten_layers`."""
    return layer._flatten_layers()


def lambda_output_shape(layer: keras.layers.Lambda) -> Any:
    """Return the argument `output_shape` of a Lambda: its `_output_shape`."""
    return layer._output_shape


def rematerialize(layer: keras.Layer) -> None:
    """Make an existing layer compute as if it were created in a `keras.RematScope`.

    Sets its `_remat_mode`. A scope sets it for all layers that are created within it: for a block
    and for the layers in the block, which would be recomputed twice.
    """
    with keras.RematScope(mode="full"):
        layer._remat_mode = keras.layers.Identity()._remat_mode

    def remade(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        # In TensorFlow graphs, custom gradients take no keyword arguments, such as `training`.
        computed_anew = keras.remat(functools.partial(call, **kwargs))
        return lambda *args, **kwargs: computed_anew(*args)

    layer.rematerialized_call = remade


class InOrder(PyDatasetAdapter):
    """Keras' adapter of a `PyDataset`, with another iterator than Keras' shuffled indices.

    `fit` uses a dataset that is a `DataAdapter` itself, which can delegate to this adapter.

    Args:
        dataset: The dataset.
        iterator: Function that returns an iterator over the batches of an epoch.
    """

    def __init__(
        self, dataset: keras.utils.PyDataset, iterator: Callable[[], Iterator[Any]]
    ) -> None:
        super().__init__(dataset)
        self._iterator = iterator

    def _get_iterator(self) -> Iterator[Any]:
        return self._iterator()


class OfSteps(TFDatasetAdapter):
    """Keras' adapter of a tf.data or distributed dataset that ends after a number of steps.

    `fit` iterates over the dataset again in each epoch. Without this number, Keras counts the parts
    of all replicas in a distributed dataset as batches.

    Args:
        dataset: The dataset.
        steps: The number of steps.
    """

    def __init__(self, dataset: Any, steps: int) -> None:
        super().__init__(dataset)
        self._steps = steps

    @property
    def num_batches(self) -> int:
        """The number of steps."""
        return self._steps


class BuildsOnBatch:
    """A mixin for a `keras.Model` whose `fit` builds an unbuilt model on one replica's batch.

    Place it before `keras.Model` in the bases. It overrides `_maybe_symbolic_build`. `fit` and
    `evaluate` call that method with an iterator, and `train_on_batch` and similar methods with a
    batch. Keras would reduce the first batch over the replicas.
    """

    _distribute_strategy: Any  # of keras.Model: the strategy in whose scope it was created, or None

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        strategy = self._distribute_strategy
        if iterator is not None and strategy is not None:
            _, _, batches = next(iter(iterator))
            data_batch = keras.tree.map_structure(
                lambda value: strategy.experimental_local_results(value)[0], next(batches)
            )
            iterator = None
        super()._maybe_symbolic_build(iterator=iterator, data_batch=data_batch)  # type: ignore[misc]
