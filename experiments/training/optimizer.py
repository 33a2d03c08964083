"""The optimizer and the learning rates that the flags select."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from experiments.options import RunOptions, UsageError
from keras_dml import models, optimizers
from keras_dml._common.checks import check_number
from keras_dml.optimizers import Rate


def scheduled(options: RunOptions, rate: float, total_updates: int) -> Rate:
    """Return the learning rate, or the schedule over the updates, that the flags select.

    Raises:
        UsageError: A flag is set that the schedule does not take, or a required flag is missing.
    """
    given = options.schedule_arguments
    return optimizers.SCHEDULES[options.schedule](rate, total_updates, **given)


def optimizer(
    options: RunOptions,
    rate: Rate,
    multipliers: Mapping[str, float] | None = None,
    ema: float | None = None,
) -> keras.optimizers.Optimizer:
    """Create the optimizer that the flags select.

    Args:
        options: The options of the run.
        rate: The learning rate.
        multipliers: Factors on the learning rate by variable, from
            `keras_dml.optimizers.multipliers`.
        ema: Momentum of a moving average of the weights. None for no average.

    Raises:
        UsageError: A flag is set that the optimizer does not take, or `ema` is 1.
    """
    maker = optimizers.OPTIMIZERS[options.optimizer]
    decoupled = "decoupled_weight_decay" in inspect.signature(maker).parameters
    decay = "decoupled" if decoupled else "coupled"
    arguments: dict[str, Any] = {
        "learning_rate": rate,
        f"{decay}_weight_decay": options.weight_decay,
        "decayed": options.decayed,
    }
    if multipliers is not None:
        arguments["learning_rate_multipliers"] = multipliers
    if options.global_clipnorm is not None:
        arguments["global_clipnorm"] = options.global_clipnorm
    if ema is not None:
        if ema >= 1:
            raise UsageError(
                f"ema must be below 1, but got {ema}. With 1, the average stays at the weights of "
                "the first step."
            )
        arguments |= {"use_ema": True, "ema_momentum": ema}
    return maker(**arguments, **options.optimizer_arguments)


def backbone_optimizer(
    options: RunOptions,
    backbones: Sequence[keras.Model],
    rate: Rate,
    factors: Mapping[str, float] | None = None,
) -> keras.optimizers.Optimizer:
    """Create the optimizer of the fitted model, with separate learning rates for backbones.

    Args:
        options: The options of the run.
        backbones: The layers that `pretrained_factor` and `layer_decay` change.
        rate: The learning rate of the other layers.
        factors: Factors on the learning rate of other variables.

    Raises:
        UsageError: As `optimizer`. Or the layer decay differs for two variables with one path.
        ArgumentError: The layer decay is out of range, or the backbone has no blocks.
    """
    factor, decay = options.pretrained_factor, options.layer_decay
    slower = dict(factors or {})
    for backbone in backbones:
        if decay is not None:
            check_number("layer_decay", decay, above=0, most=1)
            for path, of_layer in models.layer_multipliers(backbone, decay).items():
                if slower.setdefault(path, factor * of_layer) != factor * of_layer:
                    raise UsageError(
                        f"layer_decay must be unset for two backbones that both have {path}, but "
                        f"got {decay}. Its learning rate would differ."
                    )
        elif factor != 1.0:
            slower |= optimizers.multipliers(backbone, factor)
    return optimizer(options, rate, slower, options.ema)
