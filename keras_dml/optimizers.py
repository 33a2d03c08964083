"""Optimizers with features that published recipes need and Keras lacks.

- Coupled weight decay, on kernels or on all variables. It is added to the gradient, so that
  momentum and Adam's scaling affect it.
- Learning-rate multipliers for some variables, which decoupled weight decay follows.
- Warm-up with cosine decay.
- Under a `tf.distribute` strategy, clipping of the whole gradient and weight averages (`use_ema`).
"""

import inspect
import math
import numbers
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import keras
from keras import ops

from keras_dml._backend import private
from keras_dml._backend.configured import Configured, ConfiguredValue
from keras_dml._backend.replicas import place_among_replicas, sum_over_replicas
from keras_dml._common.checks import check_choice, check_number, check_positive, check_whole
from keras_dml._common.deprecation import renamed_names
from keras_dml._common.errors import ArgumentError, ArgumentTypeError, argument_error
from keras_dml._common.types import Tensor

__all__ = [
    "CoupledAdam",
    "CoupledRMSprop",
    "CoupledSGD",
    "LayerwiseAdamW",
    "WarmCosine",
    "multipliers",
]


# Until 0.2, the names were Keras's, whose optimizers take other arguments. Files still have them.
__getattr__ = renamed_names(
    __name__,
    SGD="CoupledSGD",
    Adam="CoupledAdam",
    AdamW="LayerwiseAdamW",
    RMSprop="CoupledRMSprop",
)


# The mixin precedes a Keras optimizer in the bases, which has all methods that it calls.
_Base: Any = object


class _Recipe(Configured, _Base):
    """A mixin that adds coupled weight decay and learning-rate multipliers to a Keras optimizer."""

    decoupled_weight_decay = 0.0

    def __init__(
        self,
        *args: Any,
        coupled_weight_decay: float = 0.0,
        decayed: str = "kernels",
        learning_rate_multipliers: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        given = inspect.signature(super().__init__).bind(*args, **kwargs)
        for name, value in given.arguments.items():
            given.arguments[name] = _checked(name, value)
        super().__init__(*given.args, **given.kwargs)
        self.coupled_weight_decay = check_number(
            "coupled_weight_decay", coupled_weight_decay, least=0
        )
        self.decayed = check_choice("decayed", decayed, ("kernels", "all"))
        if self.weight_decay:
            advice = (
                "Keras decays all variables at one rate. Use coupled_weight_decay, or "
                "decoupled_weight_decay of LayerwiseAdamW."
            )
            raise argument_error("weight_decay", "left out", self.weight_decay, advice=advice)
        if not isinstance(learning_rate_multipliers, Mapping | None):
            name, wanted = "learning_rate_multipliers", "a dict from variable path to factor"
            raise argument_error(name, wanted, learning_rate_multipliers, ArgumentTypeError)
        self.learning_rate_multipliers = {
            path: check_number(f"learning_rate_multipliers[{path!r}]", factor, least=0)
            for path, factor in (learning_rate_multipliers or {}).items()
        }
        as_on_one_device(self)

    def apply(
        self, grads: Sequence[Tensor], trainable_variables: Sequence[keras.Variable] | None = None
    ) -> None:
        if place_among_replicas()[1] > 1:
            refuse_accumulation(self)
        super().apply(grads, trainable_variables)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        super().build(variables)
        self._own = {id(variable) for variable in variables}
        self._decayed = [
            self.decayed == "all" or variable.path.endswith("kernel") for variable in variables
        ]
        self._factors = _factors(
            self.learning_rate_multipliers, [variable.path for variable in variables]
        )

    def update_step(
        self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor
    ) -> None:
        index = private.variable_index(self, variable)
        if self.coupled_weight_decay and self._decayed[index]:
            gradient = gradient + ops.cast(self.coupled_weight_decay, gradient.dtype) * variable
        factor = self._factors[index]
        if factor != 1.0:
            learning_rate = learning_rate * factor
        if self.decoupled_weight_decay and self._decayed[index]:
            rate = ops.cast(learning_rate, variable.dtype)
            self.assign_sub(variable, rate * self.decoupled_weight_decay * variable)
        super().update_step(gradient, variable, learning_rate)

    def finalize_variable_values(self, var_list: Sequence[keras.Variable]) -> None:
        # Only the variables of this optimizer. `fit` passes all variables of the model, and some
        # can belong to another optimizer (RankMI's statistics network). Before the first update,
        # the averages of Keras are zeros.
        if self.use_ema and int(ops.convert_to_numpy(self.iterations)) > 0:
            super().finalize_variable_values([each for each in var_list if id(each) in self._own])


class _VelocitySGD(keras.optimizers.SGD):
    """SGD of Keras with either form of momentum."""

    velocity = "keras"

    def update_step(
        self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor
    ) -> None:
        if self.velocity == "keras" or self.momentum == 0:
            super().update_step(gradient, variable, learning_rate)
            return
        gradient = ops.cast(gradient, variable.dtype)
        velocity = self.momentums[private.variable_index(self, variable)]
        self.assign(velocity, self.momentum * velocity + gradient)
        step = gradient + self.momentum * velocity if self.nesterov else velocity
        self.assign_sub(variable, ops.cast(learning_rate, variable.dtype) * step)


@keras.saving.register_keras_serializable("keras_dml", "SGD")
class CoupledSGD(_Recipe, _VelocitySGD):
    """`keras.optimizers.SGD` with coupled weight decay: the gradient becomes `g + λ w`.

    The momentum μ has two forms. They are equal at a constant learning rate. When the rate changes,
    `"torch"` applies the new rate to all past gradients, and `"keras"` leaves each past gradient at
    the rate of its step:

        "keras":  v ← μ v − rate·g    w ← w + v           Nesterov: w ← w + μ v − rate·g
        "torch":  v ← μ v + g         w ← w − rate·v      Nesterov: w ← w − rate·(g + μ v)

    Examples:
        >>> dense = keras.layers.Dense(2)
        >>> dense.build((None, 4))
        >>> factors = multipliers(dense, 0.1)
        >>> optimizer = CoupledSGD(0.1, momentum=0.9, learning_rate_multipliers=factors)

    Args:
        learning_rate: A rate or a schedule.
        momentum: Momentum μ, from 0 to 1.
        nesterov: Whether to use Nesterov momentum.
        velocity: Form of the momentum: `"keras"`, as Keras and Caffe define it, or `"torch"`, as
            PyTorch does.
        coupled_weight_decay: λ ≥ 0.
        decayed: `"kernels"`, every variable whose name ends in "kernel" (convolution and dense
            kernels, but not biases or batch norm), or `"all"` variables.
        learning_rate_multipliers: Dictionary from variable path to a factor ≥ 0 on its learning
            rate, from `multipliers`. Unlisted paths have the factor 1.
        Others: Arguments of `keras.optimizers.SGD`. Under a `tf.distribute`
            strategy, `clipnorm`, `global_clipnorm` and `clipvalue` clip the sum of the replicas'
            gradients, as on one device. In Keras they clip each replica's part.

    Raises:
        ValueError: A number is NaN, infinite, or out of range (also for arguments of Keras, which
            checks few of them), `decayed` or `velocity` is unknown, or the decoupled `weight_decay`
            of Keras is set. In the first step: no trainable variable of the model has a listed
            path, or `gradient_accumulation_steps` is set with several replicas.
        TypeError: `learning_rate_multipliers` is not a dictionary.
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        *args: Any,
        velocity: Literal["keras", "torch"] = "keras",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, momentum, nesterov, *args, **kwargs)
        self.velocity = check_choice("velocity", velocity, ("keras", "torch"))


@keras.saving.register_keras_serializable("keras_dml", "Adam")
class CoupledAdam(_Recipe, keras.optimizers.Adam):
    """`keras.optimizers.Adam` with coupled weight decay (L2 regularization, not AdamW).

    Has the arguments `coupled_weight_decay`, `decayed`, and `learning_rate_multipliers` of
    `CoupledSGD`, and the arguments of `keras.optimizers.Adam`. Raises as `CoupledSGD`.

    Examples:
        >>> dense = keras.layers.Dense(2)
        >>> dense.build((None, 4))
        >>> factors = multipliers(dense, 0.1)
        >>> optimizer = CoupledAdam(1e-3, learning_rate_multipliers=factors)
    """


@keras.saving.register_keras_serializable("keras_dml", "AdamW")
class LayerwiseAdamW(_Recipe, keras.optimizers.Adam):
    """Adam with decoupled weight decay: before each update `w ← w − lr·m·λ·w`.

    `m` is the variable's learning-rate multiplier, so a layer that learns slowly decays slowly.
    (`keras.optimizers.AdamW` has no multipliers. Without multipliers, both are equal.)

    Args:
        decoupled_weight_decay: λ ≥ 0, on the variables that `decayed` selects.
        Others: Arguments of `CoupledAdam`, including the coupled form.

    Raises:
        ValueError: As in `CoupledSGD`. Also if `decoupled_weight_decay` is below 0.

    Reference: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019, Alg. 2.

    Examples:

        optimizer = keras_dml.optimizers.LayerwiseAdamW(1e-4, decoupled_weight_decay=0.05)
    """

    def __init__(self, *args: Any, decoupled_weight_decay: float = 0.004, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.decoupled_weight_decay = check_number(
            "decoupled_weight_decay", decoupled_weight_decay, least=0
        )


@keras.saving.register_keras_serializable("keras_dml", "RMSprop")
class CoupledRMSprop(_Recipe, keras.optimizers.RMSprop):
    """`keras.optimizers.RMSprop` with coupled weight decay, the optimizer of Proxy-NCA and others.

    Has the arguments `coupled_weight_decay`, `decayed`, and `learning_rate_multipliers` of
    `CoupledSGD`, and the arguments of `keras.optimizers.RMSprop`. Raises as `CoupledSGD`.

    Examples:
        >>> dense = keras.layers.Dense(2)
        >>> dense.build((None, 4))
        >>> factors = multipliers(dense, 0.1)
        >>> optimizer = CoupledRMSprop(1e-3, learning_rate_multipliers=factors)

    Args:
        learning_rate: A rate or a schedule.
        rho: Decay ρ of the average of squared gradients.
        momentum: Momentum, from 0 to 1.
        Others: Arguments of `keras.optimizers.RMSprop` and `CoupledSGD`.
    """

    def __init__(
        self, learning_rate: Any = 0.001, rho: float = 0.9, momentum: float = 0.0,
        *args: Any, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, rho, momentum, *args, **kwargs)


def as_on_one_device(optimizer: keras.Optimizer) -> None:
    """Make a Keras optimizer treat the replicas' gradients as one device treats their sum.

    Keras clips each replica's part of the gradient before the sum, and its `LossScaleOptimizer`
    checks only the first replica's part for overflows. After this call, the optimizer, and the
    optimizers within it, clip the sum and check all parts. On one device, and on other backends
    than TensorFlow, nothing changes.
    """
    if keras.backend.backend() != "tensorflow":
        return
    for inner in optimizers_within(optimizer):
        private.replace_clipping(inner, _clip_on_one_device, _clip_the_sum)
        if isinstance(inner, keras.optimizers.LossScaleOptimizer):
            inner.check_finite = types.MethodType(_all_replicas_finite, inner)


def optimizers_within(optimizer: keras.Optimizer) -> list[keras.Optimizer]:
    """Return the optimizer and the optimizers in a `LossScaleOptimizer` or `MultiOptimizer`."""
    several = getattr(keras.optimizers, "MultiOptimizer", None)  # since Keras 3.15
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        inner = [optimizer.inner_optimizer]
    elif several is not None and isinstance(optimizer, several):
        inner = optimizer.optimizers
    else:
        inner = []
    return [optimizer, *(deeper for one in inner for deeper in optimizers_within(one))]


def refuse_accumulation(optimizer: keras.Optimizer) -> None:
    """Raise `ValueError` if the optimizer, or one within it, accumulates gradients."""
    for inner in optimizers_within(optimizer):
        steps = inner.gradient_accumulation_steps
        if steps:
            name, wanted = "gradient_accumulation_steps", "None with several replicas"
            advice = "TensorFlow refuses conditional updates. Use fewer devices or smaller batches."
            raise argument_error(name, wanted, steps, advice=advice)


# These replace methods of one optimizer. The class keeps the Keras methods.


def _clip_on_one_device(optimizer: keras.Optimizer, gradients: list[Tensor]) -> list[Tensor]:
    if place_among_replicas()[1] > 1:
        return gradients  # clipped after the sum
    return private.clipped(optimizer, gradients)


def _clip_the_sum(
    optimizer: keras.Optimizer,
    gradients_and_variables: list[tuple[Tensor, keras.Variable]],
) -> list[tuple[Tensor, keras.Variable]]:
    summed = private.summed_over_replicas(optimizer, gradients_and_variables)
    if place_among_replicas()[1] == 1:
        return summed
    gradients, variables = zip(*summed)
    return list(zip(private.clipped(optimizer, list(gradients)), variables))


def _all_replicas_finite(optimizer: keras.Optimizer, gradients: list[Tensor]) -> Tensor:
    finite = type(optimizer).check_finite(optimizer, gradients)
    # All replicas must agree, because they update, or lower the scale, together.
    return sum_over_replicas(ops.cast(finite, "float32")) >= place_among_replicas()[1]


OPTIMIZERS: dict[str, type[keras.Optimizer]] = {
    "sgd": CoupledSGD,
    "adam": CoupledAdam,
    "adamw": LayerwiseAdamW,
    "rmsprop": CoupledRMSprop,
}
"""The optimizers by the names that `--optimizer` takes."""


def multipliers(model: keras.Layer, factor: float) -> dict[str, float]:
    """Return `learning_rate_multipliers` with this factor for the variables of a model or layer.

    Examples:
        >>> inputs = keras.Input((4,))
        >>> model = keras.Model(inputs, keras.layers.Dense(2, name="backbone")(inputs))
        >>> factors = multipliers(model.get_layer("backbone"), 0.1)
        >>> sorted(factors.items())
        [('backbone/bias', 0.1), ('backbone/kernel', 0.1)]
    """
    factor = check_number("factor", factor, least=0)
    return {variable.path: factor for variable in model.trainable_variables}


@keras.saving.register_keras_serializable("keras_dml")
class WarmCosine(ConfiguredValue, keras.optimizers.schedules.LearningRateSchedule):
    """Cosine decay with linear warm-up: `lr · min((i + 1) / warmup, (1 + cos(π i / T)) / 2)`.

    Examples:
        >>> rate = WarmCosine(0.1, total_steps=100, warmup_steps=10)
        >>> [round(float(rate(step)), 3) for step in (0, 9, 100)]
        [0.01, 0.098, 0.0]

    Args:
        learning_rate: lr, the highest rate.
        total_steps: T.
        warmup_steps: Steps of linear warm-up, at least 1.

    Raises:
        ValueError: `learning_rate` is not above 0, or `total_steps` or `warmup_steps` is below 1.

    Reference: the published settings of Boudiaf et al. 2020 (warm-up of 100 steps).
    """

    def __init__(self, learning_rate: float, total_steps: int, warmup_steps: int = 100) -> None:
        super().__init__()
        self.learning_rate = check_positive("learning_rate", learning_rate)
        self.total_steps = check_whole("total_steps", total_steps, least=1)
        self.warmup_steps = check_whole("warmup_steps", warmup_steps, least=1)

    def __call__(self, step: Tensor | int) -> Tensor:
        """Compute the learning rate of step i, counted from 0."""
        step = ops.cast(step, "float32")
        warm = (step + 1.0) / self.warmup_steps
        progress = ops.minimum(step / self.total_steps, 1.0)
        cosine = (1.0 + ops.cos(math.pi * progress)) / 2.0
        return self.learning_rate * ops.minimum(warm, cosine)


Rate: TypeAlias = float | keras.optimizers.schedules.LearningRateSchedule
"""A learning rate, or a schedule over the steps."""


def step_decay(
    learning_rate: float, total_steps: int, decay_steps: int, decay_factor: float = 0.1
) -> Rate:
    """Multiply the learning rate by a factor every `decay_steps` steps.

    Args:
        learning_rate: Rate of the first steps.
        total_steps: Unused. All schedules take it.
        decay_steps: Steps between two decays, at least 1.
        decay_factor: Factor of each decay, at least 0.

    Raises:
        ValueError: An argument is out of range.

    Examples:
        >>> rate = step_decay(0.8, total_steps=10, decay_steps=4, decay_factor=0.5)
        >>> [round(float(rate(step)), 3) for step in (0, 3, 4, 8)]
        [0.8, 0.8, 0.4, 0.2]
    """
    decay_steps = check_whole("decay_steps", decay_steps, least=1)
    decay_factor = check_number("decay_factor", decay_factor, least=0)
    return keras.optimizers.schedules.ExponentialDecay(
        learning_rate, decay_steps, decay_factor, staircase=True
    )


def constant(learning_rate: float, total_steps: int) -> Rate:
    """Return the learning rate."""
    return learning_rate


SCHEDULES: dict[str, Callable[..., Rate]] = {
    "warm_cosine": WarmCosine,
    "step": step_decay,
    "constant": constant,
}
"""Functions from (learning_rate, total_steps, further arguments) to schedules, by name.

A command line sets the further arguments by flags of their names.
"""


def _factors(multipliers: Mapping[str, float], paths: list[str]) -> list[float]:
    """Return the factor of each path: its entry in `multipliers`, or 1."""
    factors = dict.fromkeys(paths, 1.0)
    for listed, factor in multipliers.items():
        # Loading or cloning a model drops the name of a nested Sequential from its paths.
        found = {path for path in paths if path == listed} or {
            path for path in paths if listed.endswith(f"/{path}") or path.endswith(f"/{listed}")
        }
        if len(found) != 1:
            raise ArgumentError(
                "learning_rate_multipliers must name trainable variables of the model, such as "
                f"{paths[0]!r}, but got {listed!r}, which names "
                f"{', '.join(sorted(found)) or 'none'}."
            )
        factors[found.pop()] = factor
    return [factors[path] for path in paths]


# Numeric arguments of the Keras constructors, and their valid ranges.
_RANGES = {
    "learning_rate": {"least": 0},
    "momentum": {"least": 0, "most": 1},
    "beta_1": {"least": 0, "below": 1},
    "beta_2": {"least": 0, "below": 1},
    "epsilon": {"least": 0},
    "rho": {"least": 0, "below": 1},
    "clipnorm": {"above": 0},
    "clipvalue": {"above": 0},
    "global_clipnorm": {"above": 0},
    "ema_momentum": {"least": 0, "most": 1},
    "loss_scale_factor": {"above": 0},
}
_LEAST = {"ema_overwrite_frequency": 1, "gradient_accumulation_steps": 0}
_MAY_BE_NONE = ("clipnorm", "clipvalue", "global_clipnorm", "loss_scale_factor", *_LEAST)


def _checked(name: str, value: object) -> object:
    """Check a numeric argument of a Keras constructor. Other arguments are returned unchanged."""
    if value is None and name in _MAY_BE_NONE:
        return None
    if name in _LEAST:
        return check_whole(name, value, least=_LEAST[name])
    if name == "learning_rate" and not isinstance(value, numbers.Number | str | None):
        return value  # a schedule, a function or a variable
    return check_number(name, value, **_RANGES[name]) if name in _RANGES else value
