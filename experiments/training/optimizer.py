"""What the flags describe of optimizers and their learning rates."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import keras

from experiments.options import RunOptions, UsageError
from keras_dml import optimizers

#: A learning rate: a number, or a schedule over the updates.
Rate: TypeAlias = float | keras.optimizers.schedules.LearningRateSchedule


def scheduled(options: RunOptions, rate: float, total_updates: int) -> Rate:
    """The learning rate of each of so many updates."""
    if options.schedule == "warm_cosine":
        return optimizers.WarmCosine(rate, total_updates, options.warmup_steps)
    return rate


def optimizer(
    options: RunOptions, rate: Rate, multipliers: Mapping[str, float] | None = None
) -> keras.optimizers.Optimizer:
    """The optimizer that the flags name.

    Args:
        options: the run's.
        rate: its learning rate.
        multipliers: of the learning rate, by variable, as from `keras_dml.optimizers.multipliers`.

    Raises:
        UsageError: momentum for an optimizer that has none.
    """
    arguments: dict[str, Any] = {
        "learning_rate": rate,
        "coupled_weight_decay": options.weight_decay,
        "decayed": options.decayed,
    }
    if multipliers is not None:
        arguments["learning_rate_multipliers"] = multipliers
    if options.optimizer == "sgd":
        arguments |= {"momentum": options.momentum, "nesterov": options.nesterov}
    elif options.momentum or options.nesterov:
        raise UsageError(
            f"momentum and nesterov are for --optimizer=sgd. Received: {options.optimizer}"
        )
    return optimizers.OPTIMIZERS[options.optimizer](**arguments)


def backbone_optimizer(
    options: RunOptions, backbone: keras.Model, rate: Rate
) -> keras.optimizers.Optimizer:
    """The optimizer of the fitted model, which may give its backbone another learning rate."""
    factor = options.pretrained_factor
    slower = None if factor == 1.0 else optimizers.multipliers(backbone, factor)
    return optimizer(options, rate, slower)
