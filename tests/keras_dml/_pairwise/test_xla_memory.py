"""Losses that sort or compare have no array beyond n² numbers, even compiled by XLA."""

import math
import re

import numpy as np
import pytest
import tensorflow as tf

from keras_dml import losses


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("triplet", {"triplets": "semihard"}),
        *((name, {}) for name in ("triplet", "quadruplet", "fastap", "lifted_structure")),
        *((name, {}) for name in ("smooth_ap", "recall_at_k")),
    ],
)
def test_no_array_of_a_compiled_step_is_larger_than_a_few_matrices(name, arguments):
    rng = np.random.default_rng(0)
    size = 64
    ids, z = np.arange(size) // 4, tf.constant(rng.normal(size=(size, 8)).astype("float32"))
    loss = losses.get(name, **arguments)

    @tf.function(jit_compile=True)
    def step(z):
        with tf.GradientTape() as tape:
            tape.watch(z)
            value = loss(ids, z)
        return tape.gradient(value, z)

    program = step.experimental_get_compiler_ir(z)(stage="optimized_hlo")
    shapes = re.findall(r"\[([\d,]+)\]", program)
    largest = max(math.prod(map(int, shape.strip(",").split(","))) for shape in shapes)
    assert size**2 <= largest <= 4 * size**2
