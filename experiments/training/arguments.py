"""What was given for the loss and its network: the only place that knows how options hold it."""

from collections.abc import Collection
from typing import Any

from absl.flags import FlagValues as Options

from experiments.options import flags

__all__ = ["Options", "loss_arguments", "statistics_arguments"]


def loss_arguments(options: Options, taken: Collection[str]) -> dict[str, Any]:
    """The loss' arguments that were given.

    Args:
        options: the run's.
        taken: names of the arguments that the loss takes.

    Raises:
        ValueError: one was given that it does not take.
    """
    given = {
        name: options[name].value
        for name in flags.LOSS_ARGUMENTS
        if options[name].value is not None
    }
    for name, value in given.items():
        if name not in taken:
            known = [argument for argument in flags.LOSS_ARGUMENTS if argument in taken]
            raise ValueError(
                f"{name} is no argument of loss {options.loss}, which takes {', '.join(known)}. "
                f"Received: {name}={value}"
            )
    return given


def statistics_arguments(options: Options) -> dict[str, Any]:
    """The arguments of the statistics network, as `keras_dml.models.StatisticsNetwork` has them."""
    names = ("hidden", "depth", "slope", "residual")
    return {name: options[f"statistics_{name}"].value for name in names}
