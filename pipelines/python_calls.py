"""Needs TensorFlow. Python functions in tf.data pipelines, freed together with the pipeline.

`tf.numpy_function` keeps a reference to each function until the process ends. The function would
keep its table alive, so no pipeline would ever be freed. Therefore, TensorFlow gets one function
for each combination of output dtypes. This function looks up the user's function by a number.
"""

import functools
import itertools
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from pipelines.process_end import refused_at_the_end

_functions: dict[int, Callable[..., tuple[np.ndarray, ...]]] = {}
_numbers = itertools.count()


def map_numpy(
    elements: tf.data.Dataset,
    function: Callable[..., tuple[np.ndarray, ...]],
    *specs: tuple[tf.DType, Sequence[int]],
) -> tf.data.Dataset:
    """Return a dataset of the rows that a NumPy function returns for each element.

    Args:
        elements: Dataset of int64 scalars.
        function: Pure function of one element. It returns arrays with the same number of rows. It
            stays alive as long as the returned dataset and the datasets made from it.
        specs: Dtype and shape of one row of each array.
    """
    number = next(_numbers)
    _functions[number] = function
    call = _caller(tuple(dtype for dtype, _ in specs))

    def look_up(element: tf.Tensor) -> tuple[tf.Tensor, ...]:
        results = call(tf.constant(number, tf.int64), element)
        return tuple(
            tf.ensure_shape(result, [None, *shape]) for result, (_, shape) in zip(results, specs)
        )

    results = elements.map(look_up)
    weakref.finalize(results, _functions.pop, number).atexit = False
    return results


@refused_at_the_end
def _call(number: np.ndarray, element: np.ndarray) -> tuple[np.ndarray, ...]:
    return _functions[int(number)](element)


@functools.cache
def _caller(dtypes: tuple[tf.DType, ...]) -> Callable[..., tuple[tf.Tensor, ...]]:
    """Return a graph function that calls the Python function with a number. It is traced only
    once."""

    def call(number: tf.Tensor, element: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return tuple(tf.numpy_function(_call, [number, element], dtypes, stateful=False))

    scalar = tf.TensorSpec([], tf.int64)
    return tf.function(call, input_signature=[scalar, scalar], autograph=False)
