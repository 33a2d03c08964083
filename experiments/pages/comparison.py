"""The table and the page of a comparison of runs."""

from __future__ import annotations

import math
import pathlib
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from markupsafe import Markup

from experiments.evaluation import scores
from experiments.evaluation.baselines import distinct_baselines
from experiments.evaluation.figures import Curves, Means, over_epochs
from experiments.evaluation.result import REPORT
from experiments.evaluation.tracked import tracked_figures
from experiments.pages.figures import svgs
from experiments.pages.page import write_page
from experiments.pages.retrieval import Grid
from keras_dml._common.errors import without_passwords

#: A line of the table: column -> value.
Line: TypeAlias = dict[str, Any]
#: Column of the scores that order the runs.
MAIN = "R@1, cosine"


def comparison_lines(
    results: Mapping[str, Mapping[str, Any]], papers: Mapping[str, Mapping[str, float]]
) -> list[Line]:
    """Return a line for each run, the best first, and a line for each baseline.

    Args:
        results: Run -> its `result.json`.
        papers: Run -> the scores in the recipe's paper, from `recipes.paper_scores`.
    """
    lines = [_line(run, result, papers[run]) for run, result in results.items()]
    lines.sort(key=lambda line: (math.isnan(line.setdefault(MAIN, math.nan)), -line[MAIN]))
    baselines = distinct_baselines(results)
    return lines + [{"recipe": name, **_scores(rows)} for name, rows in baselines.items()]


def table_of(lines: Sequence[Line]) -> list[list[str]]:
    """Return the head and the lines as text."""
    columns = list(dict.fromkeys(column for line in lines for column in line))
    return [columns, *([_text(column, line.get(column)) for column in columns] for line in lines)]


def _line(run: str, result: Mapping[str, Any], paper: Mapping[str, float]) -> Line:
    rows = {name.removeprefix("embedding, "): row for name, row in result["rows"].items()}
    others = result.get("scores") or {}
    line = {"recipe": run, **_scores({**rows, "": others})}
    if "accuracy" in result:
        line["accuracy"] = 100 * result["accuracy"]
    line |= {"training, s": result["train_seconds"], "whole run, s": result["seconds"]}
    # The whole row of the paper, next to ours. Scores that this run lacks are left out.
    for name, printed in scores.rows_of(paper, scores.PAPER).items():
        distance = name.removeprefix(f"{scores.PAPER}, ")
        for key in (key for key in printed if key in rows.get(distance, {})):
            line.setdefault(f"{scores.label_of(key)}, {distance}", rows[distance][key])
            line[f"{scores.label_of(key)}, {name}"] = 100 * printed[key]
    if "nmi" in paper and others.get("nmi") is not None:
        line |= {"NMI": 100 * others["nmi"], "NMI, paper": 100 * paper["nmi"]}
    return line


def _scores(rows: scores.Rows) -> Line:
    """Return the columns of the scores that the rows have."""
    found = {
        column: rows.get(row, {}).get(score.at_1) for column, (row, score) in _columns().items()
    }
    return {column: value for column, value in found.items() if value is not None}


def _columns() -> dict[str, tuple[str, scores.Score]]:
    """Return column -> (its row in the table of a run, its score)."""
    found = {
        f"{scores.label_of(score.at_1)}, {distance}": (str(distance), score)
        for score in scores.compared()
        for distance in (scores.DISTANCES if score.at_k else scores.DISTANCES[:1])
        if score.of_distance
    }
    found |= {score.label: ("", score) for score in scores.compared() if not score.of_distance}
    return found | {f"{scores.CATALOG}, R@1": (f"{scores.CATALOG}, cosine", scores.RECALL)}


def _text(column: str, value: str | float | None) -> str:
    if value is None or isinstance(value, str):
        return value or "–"
    columns = _columns()
    if column in columns:
        return columns[column][1].text(value)
    is_recall = column.startswith(f"{scores.RECALL.label}@") and scores.PAPER not in column
    return scores.RECALL.text(value) if is_recall else f"{value:z.1f}"


def write_comparison_page(
    page: pathlib.Path,
    forwarded: Sequence[str],
    lines: Sequence[Line],
    histories: Mapping[str, Sequence[Mapping[str, float]]],
    grid: Grid | None,
) -> None:
    """Write the page.

    Args:
        page: The file; the folder of each run is next to it.
        forwarded: Flags of every run.
        lines: The lines, from `comparison_lines`.
        histories: Run -> the objects of its `metrics.jsonl`.
        grid: The same queries by each run, if the images are available.
    """
    figures: dict[str, Means | Curves] = {
        MAIN: Means({line["recipe"]: [100 * line[MAIN]] for line in lines}, "R@1, %")
    }
    for score in scores.compared():
        curves = {run: over_epochs(history, f"test/{score.key}", score.scale)
                  for run, history in histories.items()}  # fmt: skip
        figures[f"{scores.label_of(score.at_1)} over epochs"] = Curves(curves, score.axis)
    accuracies = {
        run: over_epochs(history, scores.ACCURACY, 100) for run, history in histories.items()
    }
    figures["Accuracy over epochs"] = Curves(accuracies, "accuracy, %")
    figures |= tracked_figures(histories)
    columns, *rows = table_of(lines)
    write_page(
        page,
        "Comparison",
        template="comparison.html",
        forwarded=without_passwords(" ".join(forwarded)),
        columns=columns,
        rows=[(_linked(page, name), cells) for name, *cells in rows],
        pictures=svgs(figures),
        grid=grid,
    )


def _linked(page: pathlib.Path, name: str) -> str:
    if not (page.parent / name / REPORT).is_file():
        return name
    address = urllib.parse.quote(f"{name}/{REPORT}")
    return Markup('<a href="{}">{}</a>').format(address, name)
