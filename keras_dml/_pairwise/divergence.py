"""The costs of positive and of negative pairs in a bound of the Jensen-Shannon divergence."""

import math

from keras import ops

from keras_dml._common.types import Tensor

__all__ = ["negative_costs", "positive_costs"]


def positive_costs(values: Tensor) -> Tensor:
    """Compute the cost of a positive pair with value V: `softplus(−V) − log 2`."""
    return ops.softplus(values) - values - math.log(2.0)


def negative_costs(values: Tensor) -> Tensor:
    """Compute the cost of a negative pair with value V: `softplus(V) − log 2`."""
    return ops.softplus(values) - math.log(2.0)
