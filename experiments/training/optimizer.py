"""What the flags describe of optimizers and their learning rates."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import keras

from experiments.options import RunOptions, UsageError
from keras_dml import models, optimizers
from keras_dml._common.checks import check_number

#: A learning rate: a number, or a schedule over the updates.
Rate: TypeAlias = float | keras.optimizers.schedules.LearningRateSchedule


def _warm_cosine(options: RunOptions, rate: float, total_updates: int) -> Rate:
    return optimizers.WarmCosine(rate, total_updates, options.warmup_steps)


def _step(options: RunOptions, rate: float, total_updates: int) -> Rate:
    if options.decay_steps is None:
        raise UsageError(
            "schedule=step needs --decay_steps=N, the steps between two decays. "
            "Received: decay_steps=None"
        )
    return keras.optimizers.schedules.ExponentialDecay(
        rate, options.decay_steps, options.decay_factor, staircase=True
    )


def _constant(options: RunOptions, rate: float, total_updates: int) -> Rate:
    return rate


SCHEDULES: dict[str, Callable[[RunOptions, float, int], Rate]] = {
    "warm_cosine": _warm_cosine,
    "step": _step,
    "constant": _constant,
}
"""The schedules by the names that `--schedule` takes."""


def scheduled(options: RunOptions, rate: float, total_updates: int) -> Rate:
    """The learning rate of each of so many updates.

    Raises:
        UsageError: a schedule that lacks what it needs, or is given what is another's.
    """
    if options.decay_steps is not None and options.schedule != "step":
        raise UsageError(
            f"decay_steps is for --schedule=step. Received: schedule={options.schedule}"
        )
    return SCHEDULES[options.schedule](options, rate, total_updates)


def optimizer(
    options: RunOptions,
    rate: Rate,
    multipliers: Mapping[str, float] | None = None,
    ema: float | None = None,
) -> keras.optimizers.Optimizer:
    """The optimizer that the flags name.

    Args:
        options: the run's.
        rate: its learning rate.
        multipliers: of the learning rate, by variable, as from `keras_dml.optimizers.multipliers`.
        ema: momentum of a moving average of the weights; None: there is none.

    Raises:
        UsageError: an option of momentum for an optimizer without momentum; an average that would
            not move.
    """
    maker = optimizers.OPTIMIZERS[options.optimizer]
    decay = "decoupled" if _takes(maker, "decoupled_weight_decay") else "coupled"
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
                "ema must be below 1, with which the average would stay at the weights of the "
                f"first step. Received: ema={ema}"
            )
        arguments |= {"use_ema": True, "ema_momentum": ema}
    for name in ("momentum", "nesterov", "velocity"):
        takers = [known for known, each in optimizers.OPTIMIZERS.items() if _takes(each, name)]
        if options.optimizer in takers:
            arguments[name] = getattr(options, name)
        elif getattr(options, name) != getattr(RunOptions, name):
            raise UsageError(
                f"{name} is for --optimizer={' or '.join(takers)}. "
                f"Received: optimizer={options.optimizer}"
            )
    return maker(**arguments)


def _takes(maker: type[keras.optimizers.Optimizer], name: str) -> bool:
    """Whether an optimizer's constructor, or that of Keras' beneath it, takes an argument."""
    makers = [vars(each).get("__init__") for each in maker.__mro__]
    return any(name in inspect.signature(each).parameters for each in makers if each)


def backbone_optimizer(
    options: RunOptions,
    backbone: keras.Model,
    rate: Rate,
    factors: Mapping[str, float] | None = None,
) -> keras.optimizers.Optimizer:
    """The optimizer of the fitted model, which may give its backbone other learning rates.

    Args:
        options: the run's.
        backbone: the layers that `pretrained_factor` and `layer_decay` are for.
        rate: the learning rate of the others.
        factors: on the learning rate of some of those, by variable.

    Raises:
        UsageError: as `optimizer`.
        ArgumentError: layer decay out of range, or of a backbone that has no blocks.
    """
    factor, decay = options.pretrained_factor, options.layer_decay
    if decay is not None:
        check_number("layer_decay", decay, above=0, most=1)
        of_layers = models.layer_multipliers(backbone, decay)
        slower = {path: factor * of_layer for path, of_layer in of_layers.items()}
    else:
        slower = {} if factor == 1.0 else optimizers.multipliers(backbone, factor)
    return optimizer(options, rate, {**(factors or {}), **slower}, options.ema)
