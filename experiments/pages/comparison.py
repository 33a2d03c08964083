"""The table and the page of a comparison of runs."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from experiments.evaluation.conclusions import PairedDifference, distinct_baselines
from experiments.evaluation.figures import Curves, Means, over_epochs, tracked_figures
from experiments.evaluation.measurement import CATALOG, EMBEDDING, PAPER, Measurement, find
from experiments.evaluation.result import REPORT, baselines_of, keyed, measurements_of
from experiments.evaluation.score_table import label_of, text_of
from experiments.evaluation.scores import ACCURACY, DISTANCES, compared
from experiments.evaluation.tables import MISSING
from experiments.pages.figures import svgs
from experiments.pages.page import write_page
from experiments.pages.retrieval import Grid
from keras_dml._common.errors import without_passwords

#: Column of the scores that order the runs.
MAIN = "R@1, cosine"


class Cell(NamedTuple):
    """A value of the table, and its text."""

    value: float
    text: str


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of the table: a run or a baseline, and its cells by column."""

    name: str
    cells: dict[str, Cell]

    @property
    def main(self) -> float:
        """The score that orders the runs. NaN if it is missing."""
        return self.cells[MAIN].value if MAIN in self.cells else math.nan


def comparison_lines(
    results: Mapping[str, Mapping[str, Any]], papers: Mapping[str, Mapping[str, float]]
) -> list[Line]:
    """Return a line for each run, the best first, and a line for each baseline.

    Args:
        results: Run -> its `result.json`.
        papers: Run -> the scores in the recipe's paper, from `recipes.paper_scores`.
    """
    lines = [_line(run, result, papers.get(run, {})) for run, result in results.items()]
    lines.sort(key=lambda line: (math.isnan(line.main), -line.main))
    baselines = distinct_baselines({run: baselines_of(each) for run, each in results.items()})
    return lines + [
        Line(name, _scores([dataclasses.replace(each, part=EMBEDDING) for each in scores]))
        for name, scores in baselines.items()
    ]


def with_differences(
    lines: Sequence[Line], first: str, differences: Mapping[str, Sequence[PairedDifference]]
) -> list[Line]:
    """Add the differences of runs from the first run to their lines."""
    return [
        Line(
            line.name,
            line.cells
            | {
                f"{each.label} minus {first}": Cell(each.difference, each.text)
                for each in differences.get(line.name, ())
            },
        )
        for line in lines
    ]


def table_of(lines: Sequence[Line]) -> list[list[str]]:
    """Return the head and the lines as text."""
    columns = list(dict.fromkeys(column for line in lines for column in line.cells))
    cells = [[line.cells[name].text if name in line.cells else MISSING for name in columns]
             for line in lines]  # fmt: skip
    return [["run", *columns], *([line.name, *row] for line, row in zip(lines, cells))]


def _line(run: str, result: Mapping[str, Any], paper: Mapping[str, float]) -> Line:
    own, printed = measurements_of(result), keyed(paper, PAPER)
    cells = _scores(own)
    cells.setdefault(MAIN, Cell(math.nan, MISSING))
    numbers = {"training, s": result["train_seconds"], "whole run, s": result["seconds"]}
    if result.get("accuracy") is not None:
        numbers = {"accuracy": 100 * result["accuracy"], **numbers}
    cells |= {name: _number(value) for name, value in numbers.items() if value is not None}
    # The whole row of the paper, next to ours. Scores that this run lacks are left out.
    for each in printed:
        ours = find(own, each.score, each.k, each.distance)
        if ours is not None and not math.isnan(ours.value):
            label, of = label_of(each), [] if each.distance is None else [each.distance]
            cells.setdefault(", ".join([label, *of]), _cell(ours))
            cells[", ".join([label, PAPER, *of])] = _number(100 * each.value)
    return Line(run, cells)


def _number(value: float) -> Cell:
    return Cell(value, f"{value:z.1f}")


def _cell(measurement: Measurement) -> Cell:
    return Cell(measurement.value, text_of(measurement))


def _scores(measurements: Sequence[Measurement]) -> dict[str, Cell]:
    """Return the cells of the scores that are there."""
    found: dict[str, Measurement | None] = {}
    for score in compared():
        for distance in DISTANCES if score.at_k else DISTANCES[:1]:
            of = [distance] if score.of_distance else []
            found[", ".join([score.label_at_1, *of])] = score.of(measurements, distance)
    for score in compared():
        in_catalog = score.of(measurements, side="catalog")
        found[f"{CATALOG}, {score.label_at_1}"] = in_catalog
    return {
        column: _cell(each)
        for column, each in found.items()
        if each is not None and not math.isnan(each.value)
    }


def write_comparison_page(
    page: pathlib.Path,
    forwarded: Sequence[str],
    lines: Sequence[Line],
    histories: Mapping[str, Sequence[Mapping[str, float]]],
    grid: Grid | None,
    folders: Mapping[str, pathlib.Path],
    sentences: Sequence[str] = (),
) -> None:
    """Write the page.

    Args:
        page: The file.
        forwarded: Flags of every run.
        lines: The lines, from `comparison_lines`.
        histories: Run -> the objects of its `metrics.jsonl`.
        grid: The same queries by each run, if the images are available.
        folders: Folder of each run.
        sentences: What a reader may conclude.
    """
    figures: dict[str, Means | Curves] = {
        MAIN: Means({line.name: [100 * line.main] for line in lines}, "R@1, %")
    }
    for score in compared():
        curves = {run: over_epochs(history, score.log_key(), score.scale)
                  for run, history in histories.items()}  # fmt: skip
        figures[f"{score.label_at_1} over epochs"] = Curves(curves, score.axis)
    accuracies = {run: over_epochs(history, ACCURACY, 100) for run, history in histories.items()}
    figures["Accuracy over epochs"] = Curves(accuracies, "accuracy, %")
    figures |= tracked_figures(histories)
    columns, *rows = table_of(lines)
    write_page(
        page,
        "Comparison",
        template="comparison.html",
        forwarded=without_passwords(" ".join(forwarded)),
        columns=columns,
        rows=[(_linked(page, name, folders.get(name)), cells) for name, *cells in rows],
        sentences=sentences,
        pictures=svgs(figures),
        grid=grid,
    )


def _linked(page: pathlib.Path, name: str, folder: pathlib.Path | None) -> str:
    if folder is None or not (folder / REPORT).is_file():
        return name
    address = urllib.parse.quote(os.path.relpath(folder / REPORT, page.parent))
    return Markup('<a href="{}">{}</a>').format(address, name)
