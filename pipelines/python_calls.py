"""Needs TensorFlow. What a tf.data pipeline calls in Python, held as long as the pipeline is.

`tf.numpy_function` holds each function that it is given until the process ends, and with it the
table that the function reads: each pipeline that was ever made would stay. So TensorFlow is given
one function for each kind of result, and that one looks up by a number which is meant.
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
    """The dataset of what a NumPy function gives for each element, as many rows as it likes.

    Args:
        elements: of int64 scalars.
        function: of one of them, to arrays; pure. It is held as long as the dataset and what was
            made of it.
        specs: (dtype, shape) of one row of each array.
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
    """Calls the function of a number; traced once, in whatever graph it is called."""

    def call(number: tf.Tensor, element: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return tuple(tf.numpy_function(_call, [number, element], dtypes, stateful=False))

    scalar = tf.TensorSpec([], tf.int64)
    return tf.function(call, input_signature=[scalar, scalar], autograph=False)
