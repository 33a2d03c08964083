"""Results of lookups and calibrations, and names for annotations."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

__all__ = ["CalibrationResults", "Lookup"]

FloatTensor: TypeAlias = Any
"""Any tensor or array of floats."""
IntTensor: TypeAlias = Any
"""Any tensor or array of integers."""
BoolTensor: TypeAlias = Any
"""Any tensor or array of booleans."""
PandasDataFrame: TypeAlias = Any
"""A `pandas.DataFrame`."""


@dataclasses.dataclass
class Lookup:
    """A neighbor of a query.

    Examples:
        >>> Lookup(rank=1, distance=0.25, label=3).label
        3

    Attributes:
        rank: 1 for the nearest neighbor.
        distance: Distance to the query.
        label: Class id, or None.
        embedding: The neighbor's embedding as the model predicts it, not normalized.
        data: The data of the neighbor from `index(data=)`, or None.
    """

    rank: int
    distance: float
    label: int | None = None
    embedding: np.ndarray | None = None
    data: Any = None


@dataclasses.dataclass
class CalibrationResults:
    """The result of `calibrate`.

    Examples:
        >>> CalibrationResults({"optimal": {"distance": 0.1}}, {}).cutpoints["optimal"]["distance"]
        0.1

    Attributes:
        cutpoints: For each cutpoint its `name`, `value`, `distance`, and the metrics there.
        thresholds: Arrays over all thresholds: `distance`, `value`, and each metric.
    """

    cutpoints: Mapping[str, Mapping[str, float | str]]
    thresholds: Mapping[str, np.ndarray]
