"""The costs of positive and of negative pairs in a bound of the Jensen-Shannon divergence."""

import math

from keras import ops

from keras_dml._common.errors import ArgumentError
from keras_dml._common.types import Tensor


def positive_costs(values: Tensor) -> Tensor:
    """Compute the cost of a positive pair with value V: `softplus(−V) − log 2`."""
    return ops.softplus(values) - values - math.log(2.0)


def negative_costs(values: Tensor) -> Tensor:
    """Compute the cost of a negative pair with value V: `softplus(V) − log 2`."""
    return ops.softplus(values) - math.log(2.0)


def check_statistics_values(values: Tensor) -> None:
    """Raise `ValueError` unless a statistics network has values `[2, 1]` for distances `[2, 1]`."""
    if tuple(values.shape) != (2, 1):
        raise ArgumentError(
            "statistics_network must map distances [m, 1] to values [m, 1], but got values of "
            f"shape {tuple(values.shape)} for distances of shape (2, 1)."
        )
