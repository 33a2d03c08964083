"""Backend-specific parts of a training step: gradients, graphs, and branches.

A step is written as on TensorFlow and PyTorch: it reads and assigns variables. JAX needs a function
from the values of the variables to new values. `as_stateless`, `compiled`, and `branch` convert the
step, in one `keras.StatelessScope` for all variables that the step uses.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias, TypeVar, cast

import keras
from keras import ops

from keras_dml._common.types import Tensor

_T = TypeVar("_T")
_Variables: TypeAlias = Sequence[keras.Variable]
_Tensors: TypeAlias = Sequence[Tensor]
_Function: TypeAlias = Callable[..., Any]


def gradients(
    function: Callable[..., tuple[Any, _T]],
    variables: _Variables = (),
    tensors: _Tensors = (),
    upstream: _Tensors | None = None,
    states: _Variables = (),
) -> tuple[Any, _T, list[Tensor | None], list[Tensor | None]]:
    """Compute a function's outputs, and the gradients of their sum at variables and arguments.

    Args:
        function: Function of `tensors` that returns `(outputs, others)`: a tensor or a list of
            tensors, and values without gradients.
        variables: Variables to differentiate.
        tensors: Arguments to differentiate.
        upstream: Weights of the outputs, one tensor each. None uses ones.
        states: All other variables that the function reads or assigns. Only JAX uses them.
            Assignments persist.

    Returns:
        `(outputs, others, at_variables, at_tensors)`. On TensorFlow and PyTorch, a gradient is None
        if the outputs do not depend on its variable or argument.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        return _by_tape(function, variables, tensors, upstream)
    if backend == "jax":
        return _by_vjp(function, variables, tensors, upstream, states)
    return _by_autograd(function, variables, tensors, upstream)


def _by_tape(
    function: _Function, variables: _Variables, tensors: _Tensors, upstream: _Tensors | None
) -> Any:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(list(tensors))
        outputs, others = function(*tensors)
    at_variables, at_tensors = tape.gradient(
        outputs, [list(variables), list(tensors)], output_gradients=upstream
    )
    return outputs, others, _dense(at_variables), _dense(at_tensors)


def _dense(values: Sequence[Any]) -> list[Any]:
    return [None if value is None else ops.convert_to_tensor(value) for value in values]


def _by_vjp(
    function: _Function,
    variables: _Variables,
    tensors: _Tensors,
    upstream: _Tensors | None,
    states: _Variables,
) -> Any:
    import jax

    among = {id(variable) for variable in variables}
    states = [variable for variable in states if id(variable) not in among]
    before = values_of(states)

    def pure(values: Sequence[Tensor], tensors: Sequence[Tensor]) -> Any:
        with _scope([*variables, *states], [*values, *before]):
            outputs, others = function(*tensors)
            return outputs, (others, values_of(states))

    arguments = values_of(variables), list(tensors)
    outputs, pull, (others, after) = jax.vjp(pure, *arguments, has_aux=True)
    if upstream is None:
        upstream = jax.tree.map(ops.ones_like, outputs)
    at_variables, at_tensors = pull(upstream)
    _assign(states, after, before)
    return outputs, others, list(at_variables), list(at_tensors)


def _by_autograd(
    function: _Function, variables: _Variables, tensors: _Tensors, upstream: _Tensors | None
) -> Any:
    import torch

    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_() for tensor in cast(Sequence[Any], tensors)]
        outputs, others = function(*leaves)
        several = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
        given = upstream or [torch.ones_like(output) for output in several]
        # A loss that depends on no trainable variable, as for a batch without pairs, has no graph.
        met = [(output, weight) for output, weight in zip(several, given) if output.requires_grad]
        every: list[Any] = [*values_of(variables), *leaves]
        learnt = [place for place, each in enumerate(every) if each.requires_grad]
        found: dict[int, Any] = {}
        if met and learnt:
            targets, weights = zip(*met)
            at = torch.autograd.grad(
                targets, [every[place] for place in learnt], weights, allow_unused=True
            )
            found = dict(zip(learnt, at))
    at_all = [found.get(place) for place in range(len(every))]
    split = len(variables)
    return _detached(outputs), _detached(others), at_all[:split], at_all[split:]


def _detached(values: Any) -> Any:
    import torch

    return keras.tree.map_structure(
        lambda value: value.detach() if isinstance(value, torch.Tensor) else value, values
    )


def applied(
    optimizer: keras.Optimizer, gradients: Sequence[Tensor | None], variables: _Variables
) -> None:
    """Call `optimizer.apply` on any backend."""
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if keras.backend.backend() != "jax" or not scales:
        optimizer.apply(list(gradients), list(variables))
        return
    # Its `apply` assigns within a branch, and JAX does not allow these values to leave it.
    states = optimizer.variables
    before, of_states = values_of(variables), values_of(states)
    after, new_states = optimizer.stateless_apply(of_states, list(gradients), before)
    _assign([*variables, *states], [*after, *new_states], [*before, *of_states])


def compiled(step: _Function, variables: _Variables, assigns: bool = True) -> _Function:
    """Compile a step of tensors if the backend supports it.

    Args:
        step: Function from tensors to tensors.
        variables: All variables that it reads or assigns.
        assigns: Whether it assigns variables.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(step, reduce_retracing=True)
    if backend != "jax":
        return without_gradients(step)
    import jax

    stateless = as_stateless(step, variables)
    if not assigns:
        result_alone = jax.jit(lambda values, *arguments: stateless(values, *arguments)[0])
        return lambda *arguments: result_alone(values_of(variables), *arguments)
    pure = jax.jit(stateless)

    def run(*arguments: Any) -> Any:
        before = values_of(variables)
        result, after = pure(before, *arguments)
        _assign(variables, after, before)
        return result

    return run


def without_gradients(step: Callable[..., _T]) -> Callable[..., _T]:
    """Wrap a step so that PyTorch records a graph only within `gradients`."""
    if keras.backend.backend() != "torch":
        return step
    import torch

    def run(*arguments: Any) -> _T:  # torch.compile fails at no_grad as a decorator
        with torch.no_grad():
            return step(*arguments)

    return run


def as_stateless(step: Callable[..., _T], variables: _Variables) -> Callable[..., Any]:
    """Convert a step to a function `(values, *arguments) -> (result, values)` of the variables."""

    def pure(values: Sequence[Tensor], *arguments: Any) -> tuple[_T, list[Tensor]]:
        with _scope(variables, values):
            result = step(*arguments)
            return result, values_of(variables)

    return pure


def branch(
    first: Tensor, on_true: Callable[[], _T], on_false: Callable[[], _T], variables: _Variables
) -> _T:
    """Run one of two steps, depending on a bool tensor.

    Args:
        first: Whether to run `on_true`.
        on_true, on_false: Steps that return the same structure.
        variables: All variables that the steps read or assign.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.cond(first, on_true, on_false)
    if backend != "jax":
        return on_true() if bool(first) else on_false()
    import jax

    before = values_of(variables)
    steps = as_stateless(on_true, variables), as_stateless(on_false, variables)
    if jax.default_backend() == "cpu":
        # There, XLA takes 20 to 190 times as long for a gradient of convolutions in a condition.
        result, after = jax.tree.map(
            functools.partial(jax.lax.select, cast(Any, first)),
            *(step(before) for step in steps),
        )
    else:
        result, after = jax.lax.cond(first, *steps, before)
    _assign(variables, after, before)
    return result


def loop(number: Any, body: Callable[..., Any], carried: Sequence[Any]) -> Any:
    """Run `carried = body(i, *carried)` for each i below `number`, and return `carried`.

    The iterations run one at a time, because parallel iterations would need the memory of all.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        _, *carried = tf.while_loop(
            lambda i, *_: i < number,
            lambda i, *values: (i + 1, *body(i, *values)),
            (tf.constant(0), *carried),
            parallel_iterations=1,
        )
        return carried
    if backend == "jax":
        import jax

        return jax.lax.fori_loop(0, number, lambda i, values: body(i, *values), tuple(carried))
    for i in range(number):
        carried = body(i, *carried)
    return carried


def values_of(variables: _Variables) -> list[Tensor]:
    """Return the current values of the variables: in a scope, the values of the scope."""
    return [variable.value for variable in variables]


def _scope(variables: _Variables, values: Sequence[Tensor]) -> AbstractContextManager:
    if not variables:  # use the open scope, if any
        return contextlib.nullcontext()
    return keras.StatelessScope(
        state_mapping=list(zip(variables, values)), collect_losses=True, initialize_variables=False
    )


def _assign(variables: _Variables, after: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    for variable, value, old in zip(variables, after, before):
        if value is not old:
            variable.assign(value)
