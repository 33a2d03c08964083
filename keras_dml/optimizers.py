"""What the papers' recipes need of an optimizer and Keras lacks.

Coupled weight decay (added to the gradient, so that momentum and Adam's scaling act on it), on
kernels or on all; a learning rate of its own for some variables; the warm-up with cosine decay.
"""

import math
import numbers
from collections.abc import Mapping

import keras
from keras import ops


class _Recipe:
    """Adds coupled weight decay and learning-rate multipliers to a Keras optimizer."""

    def __init__(
        self,
        *args,
        coupled_weight_decay=0.0,
        decayed="kernels",
        learning_rate_multipliers=None,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self.coupled_weight_decay = _at_least_0("coupled_weight_decay", coupled_weight_decay)
        if decayed not in ("kernels", "all"):
            raise ValueError(f"decayed must be 'kernels' or 'all'. Received: decayed={decayed!r}")
        self.decayed = decayed
        if self.weight_decay:
            raise ValueError(
                "weight_decay is Keras' decoupled form; use coupled_weight_decay here. "
                f"Received: weight_decay={self.weight_decay!r}"
            )
        if not isinstance(learning_rate_multipliers, Mapping | None):
            raise TypeError(
                "learning_rate_multipliers must be a dict from variable path to factor. "
                f"Received: learning_rate_multipliers={learning_rate_multipliers!r}"
            )
        self.learning_rate_multipliers = {
            path: _at_least_0(f"learning_rate_multipliers[{path!r}]", factor)
            for path, factor in (learning_rate_multipliers or {}).items()
        }

    def build(self, variables):
        super().build(variables)
        self._decayed = [
            self.decayed == "all" or variable.path.endswith("kernel") for variable in variables
        ]
        self._factors = _factors(
            self.learning_rate_multipliers, [variable.path for variable in variables]
        )

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)
        if self.coupled_weight_decay and self._decayed[index]:
            gradient = gradient + ops.cast(self.coupled_weight_decay, gradient.dtype) * variable
        factor = self._factors[index]
        if factor != 1.0:
            learning_rate = learning_rate * factor
        super().update_step(gradient, variable, learning_rate)

    def get_config(self):
        return {
            **super().get_config(),
            "coupled_weight_decay": self.coupled_weight_decay,
            "decayed": self.decayed,
            "learning_rate_multipliers": dict(self.learning_rate_multipliers),
        }


@keras.saving.register_keras_serializable("keras_dml")
class SGD(_Recipe, keras.optimizers.SGD):
    """`keras.optimizers.SGD` with coupled weight decay: the gradient becomes `g + λ w`.

    Args:
        coupled_weight_decay: λ ≥ 0.
        decayed: `"kernels"`, every variable whose name ends in "kernel" (convolution and dense
            kernels; not biases, not batch norm), or `"all"` variables.
        learning_rate_multipliers: dict from variable path to a factor ≥ 0 on its learning rate, as
            `multipliers` makes it; a path that is not listed has factor 1.
        Others: those of `keras.optimizers.SGD` (learning_rate, momentum, nesterov, ...).

    Raises:
        ValueError: a negative decay or factor, unknown `decayed`, or Keras' decoupled
            `weight_decay`; in the first step, a path that no trainable variable of the model has.
        TypeError: `learning_rate_multipliers` is no dict.
    """


@keras.saving.register_keras_serializable("keras_dml")
class Adam(_Recipe, keras.optimizers.Adam):
    """`keras.optimizers.Adam` with coupled weight decay, that is L2 and not AdamW.

    Takes `coupled_weight_decay`, `decayed` and `learning_rate_multipliers` as our `SGD` does, and
    the arguments of `keras.optimizers.Adam`; raises as `SGD` does.
    """


OPTIMIZERS = {"sgd": SGD, "adam": Adam}
"""The optimizers by the names that `--optimizer` takes."""


def multipliers(model, factor):
    """`learning_rate_multipliers` that give the variables of `model` (or layer) this factor."""
    return {variable.path: float(factor) for variable in model.trainable_variables}


@keras.saving.register_keras_serializable("keras_dml")
class WarmCosine(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up under a cosine: `lr · min((i + 1) / warmup, (1 + cos(π i / T)) / 2)`.

    Args:
        learning_rate: lr, the highest rate. total_steps: T. warmup_steps: at least 1.

    Raises:
        ValueError: `learning_rate` not above 0, `total_steps` or `warmup_steps` below 1.

    Reference: the published settings of Boudiaf et al. 2020 (warm-up of 100 steps).
    """

    def __init__(self, learning_rate, total_steps, warmup_steps=100):
        super().__init__()
        if not 0 < learning_rate < math.inf:
            raise ValueError(
                f"learning_rate must be above 0. Received: learning_rate={learning_rate!r}"
            )
        for name, steps in (("total_steps", total_steps), ("warmup_steps", warmup_steps)):
            if steps < 1:
                raise ValueError(f"{name} must be at least 1. Received: {name}={steps!r}")
        self.learning_rate = float(learning_rate)
        self.total_steps = int(total_steps)
        self.warmup_steps = int(warmup_steps)

    def __call__(self, step):
        """The learning rate of step i, counted from 0."""
        step = ops.cast(step, "float32")
        warm = (step + 1.0) / self.warmup_steps
        progress = ops.minimum(step / self.total_steps, 1.0)
        cosine = (1.0 + ops.cos(math.pi * progress)) / 2.0
        return self.learning_rate * ops.minimum(warm, cosine)

    def get_config(self):
        """The constructor's arguments."""
        return {
            "learning_rate": self.learning_rate,
            "total_steps": self.total_steps,
            "warmup_steps": self.warmup_steps,
        }


def _factors(multipliers, paths):
    """The factor of each of `paths`: what `multipliers` lists for it, else 1."""
    factors = dict.fromkeys(paths, 1.0)
    for listed, factor in multipliers.items():
        # Loading or cloning a model drops the name of a nested Sequential from its paths.
        found = {path for path in paths if path == listed} or {
            path for path in paths if listed.endswith(f"/{path}") or path.endswith(f"/{listed}")
        }
        if len(found) != 1:
            raise ValueError(
                "learning_rate_multipliers must name trainable variables of the model, such as "
                f"{paths[0]!r}. Received: learning_rate_multipliers[{listed!r}], which names "
                f"{', '.join(sorted(found)) or 'none'}"
            )
        factors[found.pop()] = factor
    return [factors[path] for path in paths]


def _at_least_0(name, value):
    if not isinstance(value, numbers.Real) or not 0 <= value < math.inf:
        raise ValueError(f"{name} must be a number, at least 0. Received: {name}={value!r}")
    return float(value)
