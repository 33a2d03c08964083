"""Functions that come with a gradient of their own, written once for all backends."""

from collections.abc import Callable
from typing import Any, TypeAlias

from keras import ops

from keras_dml.types import Tensor

__all__ = ["WithGradient", "with_gradient"]

WithGradient: TypeAlias = tuple[Tensor, Callable[[Tensor], Any]]
"""A value, and the function from the gradient at it to the gradients at the inputs."""


def with_gradient(function: Callable[..., WithGradient]) -> Callable[..., Tensor]:
    """`ops.custom_gradient`, of a function whose gradient takes the upstream and nothing else.

    Args:
        function: from tensors (of variables copies) to `(value, gradient)`; `gradient(upstream)`
            gives the gradient at the one input, or a tuple for several. What else it needs it may
            close over, if no gradient has to reach it.

    Returns:
        The function of the value alone, differentiable once.
    """

    @ops.custom_gradient
    def valued(*inputs: Tensor) -> tuple[Tensor, Callable[..., Any]]:
        value, gradient = function(*inputs)

        def of_upstream(*args: Tensor, upstream: Tensor | None = None) -> Any:
            # A keyword on some backends, a positional argument on others.
            return gradient(args[0] if upstream is None else upstream)

        return value, of_upstream

    return valued
