"""One loss measured in a process of its own; `experiments.benchmark` starts it and reads it."""

import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from experiments.benchmarks.measured import PAIRWISE, made_batch, peer_step
from experiments.benchmarks.process import peak_megabytes, resident_megabytes
from experiments.benchmarks.timing import SECONDS, Step, milliseconds, milliseconds_in_turns
from experiments.options.child import end_with_parent
from keras_dml import addons, losses

ADDONS = {"addons.semihard": addons.TripletSemiHardLoss, "addons.lifted": addons.LiftedStructLoss}
# What is between the two products: a pass over n × n, the cheapest there is, and a transposed one.
PASSES = ("addition", "transposition")


def names() -> list[str]:
    """The losses that can be measured."""
    return [*PAIRWISE, *ADDONS, *PASSES]


def main(name: str, dimensions: int, xla: bool, sizes: Sequence[int]) -> None:
    """Print a JSON object for each size: n, ms, passes, xla and peer (ms or null), floor, mb."""
    batches, rows = {}, {}
    for size in sizes:
        labels, embeddings = made_batch(size, dimensions)
        before = resident_megabytes()
        step = _value_and_gradient(name, labels, embeddings)
        step(), step()
        # The peak of the process: sizes rise, so it is this size's. What else is timed comes after.
        megabytes = peak_megabytes() - before
        # In turns, as a network's passes come between two of a training: neither has its numbers
        # in the cache already, and what slows the machine down slows down both.
        times = milliseconds_in_turns({"ms": step, "floor": _floor(embeddings)}, 2 * SECONDS)
        batches[size] = labels, embeddings
        rows[size] = {"n": size, **times, "mb": megabytes}
        rows[size]["passes"] = _passes(step.function, size)
    for size, row in rows.items():
        # As `model.compile` runs it where it chooses XLA (`jit_compile="auto"`).
        compiled = _value_and_gradient(name, *batches[size], jit_compile=True) if xla else None
        peer = peer_step(name, *batches[size])
        others = {"xla": compiled and milliseconds(compiled), "peer": peer and milliseconds(peer)}
        print(json.dumps(row | others), flush=True)


class _Compiled:
    """A step, with TensorFlow's function that it calls."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self) -> Any:
        *_, last = self.function()
        return last.numpy()


def _value_and_gradient(
    name: str, labels: np.ndarray, embeddings: np.ndarray, jit_compile: bool = False
) -> _Compiled:
    if name in PASSES:
        return _pass(name, len(labels), jit_compile)
    loss = ADDONS[name]() if name in ADDONS else losses.get(name)
    z, ids = tf.constant(embeddings), tf.constant(labels)

    @tf.function(jit_compile=jit_compile)
    def step() -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(z)
            value = loss(ids, z)
        return value, tape.gradient(value, z)

    return _Compiled(step)


def _pass(name: str, size: int, jit_compile: bool) -> _Compiled:
    a, b = tf.random.stateless_normal([2, size, size], [0, 0])

    @tf.function(jit_compile=jit_compile)
    def step() -> tuple[tf.Tensor]:
        return (a + b if name == "addition" else a + tf.transpose(a),)

    return _Compiled(step)


def _passes(function: Any, size: int) -> float:
    """What the operations but the products read and write of n × n, in additions of two such.

    As they stand in the graph, before TensorFlow joins some of them.
    """
    free = {"MatMul", "Identity", "IdentityN", "Reshape", "Const", "StopGradient", "Placeholder"}
    numbers = 0
    graph = function.get_concrete_function().graph
    for operation in graph.get_operations():
        if operation.type not in free:
            for tensor in (*operation.inputs, *operation.outputs):
                if (tensor.shape.num_elements() or 0) >= size * size:
                    numbers += tensor.shape.num_elements() * tensor.dtype.size
    return numbers / (3 * 4 * size * size)


def _floor(embeddings: np.ndarray) -> Step:
    z = tf.constant(embeddings)

    @tf.function
    def products() -> tf.Tensor:
        return tf.matmul(tf.matmul(z, z, transpose_b=True), z)

    return lambda: products().numpy()


if __name__ == "__main__":
    end_with_parent()
    loss, width, with_xla, *of_batches = sys.argv[1:]
    main(loss, int(width), bool(int(with_xla)), [int(size) for size in of_batches])
