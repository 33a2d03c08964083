"""Needs TensorFlow. Python functions in tf.data pipelines, freed together with the pipeline.

`tf.numpy_function` keeps a reference to each function until the process ends. The function would
keep its table alive, so no pipeline would ever be freed. Therefore, TensorFlow gets one function
for each combination of output dtypes. This function looks up the user's function by a number.

At process exit, a tf.data thread that waits for Python's lock never gets it, and the interpreter
waits for the thread, so about one process in five would hang. Calls during the exit therefore raise
an error, which fills the buffers of the pipelines immediately. The exit continues after a short
time without calls.
"""

import atexit
import functools
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_QUIET = 0.5  # seconds without a call, after which no further call is expected
_LONGEST = 5.0  # seconds
_exiting = threading.Event()
_last_call = [float("-inf")]
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


def delivered(batches: tf.data.Dataset, count: Callable[[], None]) -> tf.data.Dataset:
    """Return the dataset, and call a function for each batch that leaves it.

    Args:
        batches: Dataset of (x, labels), where labels are a tensor or a structure of tensors.
        count: Function without arguments. It stays alive as in `map_numpy`.
    """

    def counted(_: np.ndarray) -> tuple[np.ndarray, ...]:
        count()
        return (np.zeros((), np.int64),)

    number = next(_numbers)
    _functions[number] = counted
    # TensorFlow would run stateless calls ahead, in parallel, or never.
    call = _caller((tf.int64,), stateful=True)

    def pass_on(x: Any, labels: Any) -> tuple[Any, Any]:
        (zero,) = call(tf.constant(number, tf.int64), tf.zeros([], tf.int64))
        zero = tf.ensure_shape(zero, [])
        return x, tf.nest.map_structure(lambda each: each + tf.cast(zero, each.dtype), labels)

    results = batches.map(pass_on)
    weakref.finalize(results, _functions.pop, number).atexit = False
    options = tf.data.Options()
    # TensorFlow would add a buffer at the end, which takes batches before they leave it.
    options.experimental_optimization.inject_prefetch = False
    return results.with_options(options)


@functools.cache
def on_files(function: Callable[[bytes, int], bytes]) -> Callable[..., tf.Tensor]:
    """Return a pure function of the bytes of a file and a number as a function of tensors."""

    def call(encoded: bytes, number: np.ndarray) -> bytes:
        _note_call()
        return function(encoded, int(number))

    def in_graph(encoded: tf.Tensor, number: int) -> tf.Tensor:
        arguments = [encoded, tf.constant(number, tf.int64)]
        found = tf.numpy_function(call, arguments, tf.string, stateful=False)
        return tf.ensure_shape(found, [])

    return in_graph


def _note_call() -> None:
    _last_call[0] = time.monotonic()
    if _exiting.is_set():
        raise StopIteration


def _call(number: np.ndarray, element: np.ndarray) -> tuple[np.ndarray, ...]:
    _note_call()
    return _functions[int(number)](element)


@atexit.register
def _wait_for_quiet() -> None:
    _exiting.set()
    began = time.monotonic()
    while True:
        try:
            while (now := time.monotonic()) - _last_call[0] < _QUIET and now - began < _LONGEST:
                time.sleep(0.02)
            return
        except KeyboardInterrupt:
            pass  # The process exits already.


@functools.cache
def _caller(
    dtypes: tuple[tf.DType, ...], stateful: bool = False
) -> Callable[..., tuple[tf.Tensor, ...]]:
    """Return a graph function that calls the Python function of a number, traced only once."""

    def call(number: tf.Tensor, element: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return tuple(tf.numpy_function(_call, [number, element], dtypes, stateful))

    scalar = tf.TensorSpec([], tf.int64)
    return tf.function(call, input_signature=[scalar, scalar], autograph=False)
