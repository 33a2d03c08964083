"""Functions with a hand-written gradient, written once for all backends."""

from collections.abc import Callable
from typing import TypeAlias

from keras import ops

from keras_dml.types import Tensor

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
        NotImplementedError: When the gradient is differentiated.
    """

    @ops.custom_gradient
    def unchanged(x: Tensor) -> tuple[Tensor, Callable[..., Tensor]]:
        return ops.convert_to_tensor(x), lambda *args, upstream=None: last(
            args[0] if upstream is None else upstream
        )

    @ops.custom_gradient
    def last(upstream: Tensor) -> tuple[Tensor, Callable[..., Tensor]]:
        def refuse(*_: Tensor, **__: Tensor) -> Tensor:
            raise NotImplementedError(f"Second derivatives are not supported here: {reason}.")

        return ops.convert_to_tensor(upstream), refuse

    return unchanged(x)
