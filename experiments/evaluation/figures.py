"""The numbers of figures. `experiments.pages.figures` draws them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

Point: TypeAlias = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Curves:
    """Lines over one axis.

    Attributes:
        lines: Name -> its (x, y) points. A line of fewer than two points is left out.
        y, x: Labels of the axes.
        rings: Name -> a point with a ring around it.
        levels: Name -> the y of a dotted horizontal line.
        places: Name -> the x of a vertical line.
        band: Lowest and highest x of a shaded band.
        is_log: Whether x is logarithmic.
    """

    lines: Mapping[str, Sequence[Point]]
    y: str = ""
    x: str = "epoch"
    rings: Mapping[str, Point] = dataclasses.field(default_factory=dict)
    levels: Mapping[str, float] = dataclasses.field(default_factory=dict)
    places: Mapping[str, float] = dataclasses.field(default_factory=dict)
    band: Point | None = None
    is_log: bool = False


@dataclasses.dataclass(frozen=True)
class Histograms:
    """Histograms of matching and of other pairs, one panel below the other.

    Attributes:
        panels: Title -> the numbers of matching and of other pairs in each bin.
        edges: Edges of the bins.
        x: Label of the axis.
    """

    panels: Mapping[str, tuple[np.ndarray, np.ndarray]]
    edges: np.ndarray
    x: str


@dataclasses.dataclass(frozen=True)
class Means:
    """Means of several values with their 95 % t-intervals, a line for each name.

    Attributes:
        values: Name -> its values. The first name is on top.
        x: Label of the axis.
        digits: Number of decimal places.
    """

    values: Mapping[str, Sequence[float]]
    x: str
    digits: int = 1


@dataclasses.dataclass(frozen=True)
class Trials:
    """The trials of a hyperparameter search, a panel for each hyperparameter.

    Attributes:
        values: The hyperparameters of each trial by name.
        scores: Score of each trial; None if it failed.
        best: Index of the best trial.
        logarithmic: Names of the hyperparameters with a logarithmic axis.
        y: Label of the scores.
    """

    values: Sequence[Mapping[str, float | int | str]]
    scores: Sequence[float | None]
    best: int
    logarithmic: Sequence[str]
    y: str


def over_epochs(history: Sequence[Mapping[str, float]], key: str, scale: float = 1) -> list[Point]:
    """Return the (epoch, value) points of one value of `metrics.jsonl`, without NaN and infinity.

    Args:
        history: The objects of `metrics.jsonl`.
        key: Key of the value.
        scale: Factor of the values.
    """
    pairs = [(row.get("epoch"), row.get(key)) for row in history]
    return [
        (epoch, scale * value)
        for epoch, value in pairs
        if epoch is not None and value is not None and math.isfinite(epoch) and math.isfinite(value)
    ]
