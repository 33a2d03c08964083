"""Gradients that cannot be differentiated twice: refused, with unchanged first derivatives."""

import keras
import numpy as np
import pytest
import tiers

from keras_dml._backend.gradients import once_differentiable

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="TensorFlow's tapes and graphs"
)

POINT = np.array([1.0, 2.0], "float32")
DERIVATIVE = 3 * POINT**2


def cube(x):
    return once_differentiable(x, "use differences of gradients") ** 3


def eager(function):
    return function


def compiled(function):
    return tf.function(function, jit_compile=True)


modes = pytest.mark.parametrize("mode", [eager, tf.function, compiled])


@modes
def test_a_persistent_tape_over_a_function(mode):
    cubes, x = mode(cube), tf.constant(POINT)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = cubes(x)
        within = tape.gradient(y, x)
    for gradient in (within, tape.gradient(y, x), tape.gradient(y, x)):
        np.testing.assert_allclose(gradient, DERIVATIVE)


@modes
@tiers.parametrize("whole", [eager, tf.function, compiled], [eager])
def test_vectorized_map_and_conditional(mode, whole):
    cubes, x = mode(cube), tf.constant(POINT)

    @whole
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            mapped = tf.map_fn(cubes, x)
            y = tf.cond(tf.reduce_sum(x) > 0, lambda: cubes(mapped), lambda: mapped)
        return tape.gradient(y, x)

    np.testing.assert_allclose(gradient(x), 9 * POINT**8)


def test_a_hessian_by_jacobians():
    x = tf.constant(POINT)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = cube(x)
        first = inner.gradient(y, x)
    with pytest.raises(tf.errors.UnimplementedError, match="SecondDerivativeError"):
        outer.jacobian(first, x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = cube(x)
    np.testing.assert_allclose(tape.jacobian(y, x), np.diag(DERIVATIVE))
