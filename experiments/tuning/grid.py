"""A grid of settings: recipes with each value of some flags, next to the printed scores."""

from __future__ import annotations

import csv
import itertools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.options import RunOptions, UsageError, declarations

#: (recipe, setting) as in the name of a line -> {"R@1": percent}.
Printed = Mapping[str, Mapping[str, float]]


class Setting(NamedTuple):
    """The values of the flags of a grid.

    Attributes:
        name: Such as "scale=16", or "" without a grid.
        words: The flags of a run.
    """

    name: str
    words: list[str]

    def line(self, recipe: pathlib.Path) -> str:
        """Return the name of a recipe's line in the tables."""
        return f"{recipe.stem}, {self.name}" if self.name else recipe.stem


def read_grid(words: Sequence[str]) -> list[Setting]:
    """Return every combination of the values of `NAME=V1,V2`, the last name fastest.

    Raises:
        UsageError: A word has another form, or a name is not a flag of a run or appears twice.
    """
    axes: list[tuple[str, list[str]]] = []
    for word in words:
        name, _, values = word.partition("=")
        parts = [value for value in values.split(",") if value]
        if not parts:
            raise UsageError(f"grid must be NAME=VALUE,VALUE, but got {word}.")
        if name not in declarations(RunOptions):
            raise UsageError(f"grid must have the name of a flag of a run, but got {name}.")
        if len(set(parts)) < len(parts) or name in [axis[0] for axis in axes]:
            raise UsageError(f"grid must have each name and each value once, but got {word}.")
        axes.append((name, parts))
    found = []
    for chosen in itertools.product(*(parts for _, parts in axes)):
        pairs = [f"{name}={value}" for (name, _), value in zip(axes, chosen)]
        found.append(Setting(" ".join(pairs), [f"--{pair}" for pair in pairs]))
    return found


def printed_scores(recipes: Sequence[pathlib.Path], settings: Sequence[Setting]) -> Printed:
    """Return the scores that a paper prints for the settings, from `printed.csv` next to a recipe.

    The columns of the file are recipe, item, setting, score, and value, in percent. A setting is
    "scale=16", or empty for the recipe itself, and a score is "R@1" or "NMI".
    """
    found: dict[str, dict[str, float]] = {}
    for recipe in recipes:
        file = recipe.with_name("printed.csv")
        if not file.is_file():
            continue
        with open(file, encoding="utf-8", newline="") as stream:
            rows = [row for row in csv.DictReader(stream) if row["recipe"] == recipe.stem]
        for setting in settings:
            printed = {
                row["score"]: float(row["value"]) for row in rows if row["setting"] == setting.name
            }
            if printed:
                found[setting.line(recipe)] = printed
    return found


def printed_table(
    results: Mapping[str, Sequence[Mapping[str, Any]]], printed: Printed
) -> list[list[str]]:
    """Return the printed scores next to the means of ours, percent. Empty without printed scores.

    Args:
        results: Line -> the `result.json` of each seed.
        printed: Line -> the printed scores.
    """
    if not printed:
        return []
    names = list(dict.fromkeys(name for of_line in printed.values() for name in of_line))
    head = ["setting", *itertools.chain(*((name, f"{name}, paper") for name in names))]
    return [head, *([line, *_cells(of_line, printed.get(line, {}), names)]
                    for line, of_line in results.items())]  # fmt: skip


def _cells(
    results: Sequence[Mapping[str, Any]], printed: Mapping[str, float], names: Sequence[str]
) -> list[str]:
    # These imports take seconds.
    from experiments.evaluation.conclusions import mean_interval
    from experiments.evaluation.measurement import EMBEDDING
    from experiments.evaluation.result import measurements_of
    from experiments.evaluation.score_table import label_of

    scores = [
        {
            label_of(each): each.value
            for each in measurements_of(result)
            if (each.part, each.side) == (EMBEDDING, "test") and each.distance in (None, "cosine")
        }
        for result in results
    ]
    cells = []
    for name in names:
        ours = [of_one.get(name, math.nan) for of_one in scores]
        known = [100 * value for value in ours if not math.isnan(value)]
        cells.append(mean_interval(known).text() if len(known) == len(ours) else "–")
        cells.append(f"{printed[name]:.1f}" if name in printed else "–")
    return cells
