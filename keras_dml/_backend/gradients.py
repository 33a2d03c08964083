"""Functions with a hand-written gradient, written once for all backends."""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import keras
from keras import ops

Value = TypeVar("Value")
_Function: TypeAlias = Callable[..., Any]

REVERSE_MODE = "use reverse mode, such as grad(loss) and jacrev(grad(loss))"
"""Advice for losses whose gradient is written by hand."""


class SecondDerivativeError(NotImplementedError):
    """A second derivative of a loss whose hand-written gradient cannot be differentiated.

    In a TensorFlow graph, which replaces Python exceptions, it is `tf.errors.UnimplementedError`
    with the same message. XLA does not compile such a graph, and names the operation
    `SecondDerivativesAreNotSupported`.

    Examples:
        >>> error = SecondDerivativeError("SmoothAPLoss has no second derivative")
        >>> isinstance(error, NotImplementedError)
        True
    """

    # AutoGraph hides other exceptions within a tf.function.
    __init__ = Exception.__init__


class ForwardModeError(NotImplementedError):
    """A forward-mode derivative of a loss whose gradient is written by hand, for reverse mode.

    `jvp`, `jacfwd`, and `hessian` of JAX and `torch.func` raise it. In a program that `jax.jit`
    compiles as a whole, JAX raises its `TypeError` about a `custom_vjp` function instead.

    Examples:
        >>> error = ForwardModeError("use reverse mode")
        >>> isinstance(error, NotImplementedError)
        True
    """


def with_gradient(
    function: Callable[..., Value], gradient: _Function, advice: str = REVERSE_MODE
) -> Callable[..., Value]:
    """Return a function of tensors with a gradient that is written by hand.

    Both functions receive all tensors as arguments. A closure over a traced tensor would fail
    within `jax.jit` and similar transformations. The result can be differentiated twice in reverse
    mode if `gradient` can be differentiated.

    Args:
        function: From tensors to one tensor.
        gradient: From `(upstream, *tensors)` to the gradient at the one tensor, or to a tuple with
            None for a tensor without a gradient.
        advice: Advice of the error in forward mode.

    Raises:
        ForwardModeError: JAX or PyTorch differentiates in forward mode.
    """
    if keras.backend.backend() == "jax":
        return _with_gradient_in_jax(function, gradient, advice)
    if keras.backend.backend() == "torch":
        return _with_gradient_in_torch(function, gradient, advice)

    @ops.custom_gradient
    def valued(*inputs: Any) -> tuple[Value, _Function]:
        return function(*inputs), lambda upstream: gradient(upstream, *inputs)

    return valued


def _with_gradient_in_jax(
    function: Callable[..., Value], gradient: _Function, advice: str
) -> Callable[..., Value]:
    import jax

    valued = jax.custom_vjp(function)

    def backward(inputs: tuple[Any, ...], upstream: Any) -> tuple[Any, ...]:
        found = gradient(upstream, *inputs)
        return found if isinstance(found, tuple) else (found,)

    def forward(*inputs: Any) -> tuple[Value, tuple[Any, ...]]:
        # The call of `valued` also gives second derivatives this gradient. Copies, because
        # JAX 0.10 mixes up residuals that are inputs in second derivatives of lax.scan.
        return valued(*inputs), tuple(map(ops.copy, inputs))

    valued.defvjp(forward, backward)

    def call(*inputs: Any) -> Value:
        try:
            return valued(*inputs)
        except TypeError as error:
            if "forward-mode" not in str(error):
                raise
            raise _in_forward_mode(advice) from error

    return call


def _with_gradient_in_torch(
    function: Callable[..., Value], gradient: _Function, advice: str
) -> Callable[..., Value]:
    """Wrap a function for `backward` and for `grad`, `vjp`, and `vmap` of `torch.func`."""
    import torch

    class Valued(torch.autograd.Function):
        @staticmethod
        def forward(*inputs: Any) -> Any:
            return function(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, upstream: Any) -> Any:
            return gradient(upstream, *ctx.saved_tensors)

        @staticmethod
        def vmap(info: Any, in_dims: Any, *inputs: Any) -> Any:
            # One after another, because loops and conditions depend on the values.
            each = [
                Valued.apply(
                    *(x if axis is None else x.select(axis, i) for x, axis in zip(inputs, in_dims))
                )
                for i in range(info.batch_size)
            ]
            return torch.stack(each), 0

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            raise _in_forward_mode(advice)

    return Valued.apply


def _in_forward_mode(advice: str) -> ForwardModeError:
    return ForwardModeError(f"Forward-mode derivatives are not supported here: {advice}.")


def once_differentiable(x: Value, advice: str) -> Value:
    """Return `x` and its gradient unchanged, and refuse a second derivative through it.

    For the input of a function whose hand-written gradient has no derivative.

    Args:
        x: Any tensor.
        advice: Advice of the errors.

    Raises:
        SecondDerivativeError: When the gradient is differentiated.
        ForwardModeError: As in `with_gradient`.
    """

    return cast(Value, _once_differentiable(advice)(x))


@functools.cache
def _once_differentiable(advice: str) -> Callable[..., Any]:
    last = with_gradient(ops.copy, lambda upstream, _: _refuse(advice, upstream), advice)

    def gradient(upstream: Any, x: Any) -> Any:
        # The upstream gradient need not depend on x. This zero does.
        return last(upstream + (x - ops.stop_gradient(x)))

    return with_gradient(ops.copy, gradient, advice)


def _refuse(advice: str, gradient: Any) -> Any:
    """Raise `SecondDerivativeError`, or in a TensorFlow graph return a tensor that raises it.

    TensorFlow builds unused derivatives of gradients: for a `tf.function` that is
    called under two tapes or under a persistent one. Therefore only computing them may raise. The
    operation has no side effects, so TensorFlow prunes it if its results are not used.
    """

    def fail(*_: Any) -> Any:
        raise SecondDerivativeError(f"Second derivatives are not supported here: {advice}.")

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
