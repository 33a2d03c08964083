"""Functions with a hand-written gradient, written once for all backends."""

from collections.abc import Callable
from typing import Any, TypeAlias

import keras
from keras import ops

from keras_dml._common.errors import SecondDerivativeError
from keras_dml._common.types import Tensor

__all__ = ["Backward", "with_gradient"]

Backward: TypeAlias = Callable[..., Tensor | tuple[Tensor, ...]]
"""From `(upstream, *inputs)` to the gradient at each input."""


def with_gradient(function: Callable[..., tuple[Tensor, Backward]]) -> Callable[..., Tensor]:
    """Wrap a function that returns its value and its gradient.

    The result can be differentiated twice in reverse mode if `backward` reads the inputs that it
    receives, and closes over nothing that depends on them except comparisons.

    Args:
        function: From tensors to `(value, backward)`. `value` is one tensor.
            `backward(upstream, *inputs)` returns the gradient at the one input, or a tuple.

    Returns:
        A function with the same arguments that returns the value.
    """

    @ops.custom_gradient
    def valued(*inputs: Tensor) -> tuple[Tensor, Callable[..., Tensor | tuple[Tensor, ...]]]:
        value, backward = function(*inputs)

        def gradient(*args: Tensor, upstream: Tensor | None = None) -> Tensor | tuple[Tensor, ...]:
            if upstream is None:
                return backward(args[0], *inputs)
            # PyTorch passes the inputs again, because those above are outside its graph.
            return backward(upstream, *args)

        return value, gradient

    return valued


def once_differentiable(x: Tensor, reason: str) -> Tensor:
    """Return `x` and its gradient unchanged, and refuse a second derivative through it.

    For gradients that are not the derivative of their value, such as constant weights that depend
    on the embeddings.

    Args:
        x: Any tensor.
        reason: Why, and what to do, for the message.

    Raises:
        SecondDerivativeError: When the gradient is differentiated.
    """

    @ops.custom_gradient
    def unchanged(x: Tensor) -> tuple[Tensor, Callable[..., Tensor]]:
        def gradient(*args: Tensor, upstream: Tensor | None = None) -> Tensor:
            # PyTorch passes the input and, as a keyword, the upstream.
            source, upstream = (x, args[0]) if upstream is None else (args[0], upstream)
            # Constant weights do not depend on x for a backend. This zero does.
            return last(upstream + (source - ops.stop_gradient(source)))

        return ops.convert_to_tensor(x), gradient

    @ops.custom_gradient
    def last(upstream: Tensor) -> tuple[Tensor, Callable[..., Any]]:
        return ops.convert_to_tensor(upstream), lambda *_, **__: _refuse(reason, upstream)

    return unchanged(x)


def _refuse(reason: str, gradient: Tensor) -> Any:
    """Raise `SecondDerivativeError`, or in a TensorFlow graph return a tensor that raises it.

    TensorFlow builds derivatives of gradients that nobody asks for: for a `tf.function` that is
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
