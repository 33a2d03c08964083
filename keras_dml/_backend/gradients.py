"""Functions with a hand-written gradient, written once for all backends."""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import keras
from keras import ops

Value = TypeVar("Value")
Backward: TypeAlias = Callable[..., Any]
"""From `(upstream, *inputs)` to the gradient at the one input, or to a tuple of gradients."""


class SecondDerivativeError(NotImplementedError):
    """A second derivative of a loss whose gradient is not the derivative of its value.

    In a TensorFlow graph, which replaces Python exceptions, it is `tf.errors.UnimplementedError`
    with the same message. XLA does not compile such a graph, and names the operation
    `SecondDerivativesAreNotSupported`.

    Examples:
        >>> error = SecondDerivativeError("CircleLoss has no second derivative")
        >>> isinstance(error, NotImplementedError)
        True
    """

    # AutoGraph hides other exceptions within a tf.function.
    __init__ = Exception.__init__


def with_gradient(function: Callable[..., tuple[Value, Backward]]) -> Callable[..., Value]:
    """Wrap a function that returns its value and its gradient.

    The result can be differentiated twice in reverse mode if `backward` reads the inputs that it
    receives, and closes over nothing that depends on them except comparisons.

    Args:
        function: From tensors to `(value, backward)`. `value` is one tensor.
            `backward(upstream, *inputs)` returns the gradient at the one input, or a tuple, with
            None for an input without a gradient.

    Returns:
        A function with the same arguments that returns the value.
    """

    if keras.backend.backend() == "jax":
        return _with_gradient_in_jax(function)

    @ops.custom_gradient
    def valued(*inputs: Any) -> tuple[Value, Backward]:
        value, backward = function(*inputs)

        def gradient(*args: Any, upstream: Any = None) -> Any:
            if upstream is None:
                return backward(args[0], *inputs)
            # PyTorch passes the inputs again, because those above are outside its graph.
            return backward(upstream, *args)

        return value, gradient

    return valued


def _with_gradient_in_jax(function: Callable[..., tuple[Value, Backward]]) -> Callable[..., Value]:
    """Wrap a function as `with_gradient` does, for JAX.

    `jax.custom_gradient` differentiates the function's own operations when it is differentiated
    twice, which JAX refuses for loops. Here each derivative uses `backward`.
    """
    import jax

    @jax.custom_vjp
    def valued(*inputs: Any) -> Value:
        return function(*inputs)[0]

    def forward(*inputs: Any) -> tuple[Value, tuple[Any, ...]]:
        return valued(*inputs), inputs

    def gradient(inputs: tuple[Any, ...], upstream: Any) -> tuple[Any, ...]:
        # Only comparisons remain of this value. XLA removes the rest.
        _, backward = function(*map(jax.lax.stop_gradient, inputs))
        found = backward(upstream, *inputs)
        return found if isinstance(found, tuple) else (found,)

    valued.defvjp(forward, gradient)
    return valued


def once_differentiable(x: Value, reason: str) -> Value:
    """Return `x` and its gradient unchanged, and refuse a second derivative through it.

    For gradients that are not the derivative of their value, such as constant weights that depend
    on the embeddings.

    Args:
        x: Any tensor.
        reason: The reason and advice, for the message.

    Raises:
        SecondDerivativeError: When the gradient is differentiated.
    """

    @ops.custom_gradient
    def unchanged(x: Any) -> tuple[Any, Backward]:
        def gradient(*args: Any, upstream: Any = None) -> Any:
            # PyTorch passes the input and, as a keyword, the upstream.
            source, upstream = (x, args[0]) if upstream is None else (args[0], upstream)
            # Constant weights do not depend on x for a backend. This zero does.
            return last(upstream + (source - ops.stop_gradient(source)))

        return ops.convert_to_tensor(x), gradient

    @ops.custom_gradient
    def last(upstream: Any) -> tuple[Any, Backward]:
        return ops.convert_to_tensor(upstream), lambda *_, **__: _refuse(reason, upstream)

    return unchanged(x)


def _refuse(reason: str, gradient: Any) -> Any:
    """Raise `SecondDerivativeError`, or in a TensorFlow graph return a tensor that raises it.

    TensorFlow builds unused derivatives of gradients: for a `tf.function` that is
    called under two tapes or under a persistent one. Therefore only computing them may raise. The
    operation has no side effects, so TensorFlow prunes it if its results are not used.
    """

    def fail(*_: Any) -> Any:
        raise SecondDerivativeError(f"Second derivatives are not supported here: {reason}.")

    if keras.backend.backend() != "tensorflow":
        return fail()
    import tensorflow as tf

    if tf.executing_eagerly():
        return fail()
    # With an input: TensorFlow evaluates operations without any while it optimizes the graph.
    derivative = tf.numpy_function(
        fail, [gradient], gradient.dtype, stateful=False, name="SecondDerivativesAreNotSupported"
    )
    return tf.ensure_shape(derivative, gradient.shape)
