"""`python -m experiments.compare --recipes=A.flags,B.flags`: several recipes side by side."""

from __future__ import annotations

import dataclasses
import html
import pathlib
import sys
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from experiments.options import (
    RunOptions,
    declarations,
    given_words,
    option,
    parse,
    run_command,
)
from experiments.recipes import paper_scores
from experiments.report.figures import History, bars_svg, lines_svg, paths_svg
from experiments.report.tables import html_table, markdown_table
from experiments.training.child_runs import flag_files, run_recipe

if TYPE_CHECKING:
    from experiments.report.baselines import Rows
    from experiments.report.page import Grid

_COMPARISON = "Comparison"
# A run's line of the table: column -> what stands there.
Row: TypeAlias = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareOptions(RunOptions):
    """Which recipes, and what each of their runs is given besides."""

    command = "experiments.compare"
    intro = """Run several recipes and compare them: a table, a bar chart, the curves.

  python -m experiments.compare --recipes=A.flags,B.flags [--output_dir=DIR] [--flag=value ...]

Every flag but these two goes to each run, and what a --flagfile holds. Repeating the command
continues where it stopped; finished runs are not run again.
"""

    recipes: tuple[str, ...] = option(
        (),
        _COMPARISON,
        "Recipes, here or among the packaged ones; patterns such as glyphs_*.flags.",
    )
    output_dir: str = option(
        "runs/compare",
        _COMPARISON,
        "Each recipe's run goes into a folder of its own in it; comparison.html and comparison.md "
        "beside them.",
    )


_NOT_FORWARDED = ("recipes", "output_dir", "flagfile", "debug", "help")
ROW_KEYS = ("embedding, cosine", "embedding, l2")


def main(argv: list[str]) -> None:
    """Run what is missing, then compare all."""
    options = parse(CompareOptions, argv)
    recipes, output = flag_files(options.recipes), pathlib.Path(options.output_dir)
    forwarded = given_words(
        options, [name for name in declarations(CompareOptions) if name not in _NOT_FORWARDED]
    )

    # Keras comes with it: not before a mistyped flag is answered.
    from experiments.report.baselines import distinct_baselines
    from experiments.report.links import add_link
    from experiments.training.run_files import REPORT, note_other_images, read_finished
    from keras_dml._files.atomic import replacing

    results, histories = {}, {}
    for number, recipe in enumerate(recipes, start=1):
        folder = output / recipe.stem
        print(f"[{number}/{len(recipes)}] {recipe.stem}", flush=True)
        run_recipe(recipe, folder, forwarded)
        results[recipe.stem], histories[recipe.stem] = read_finished(folder)
    note_other_images({recipe.stem: output / recipe.stem for recipe in recipes})
    rows = [_row(name, result) for name, result in results.items()]
    for recipe, row in zip(recipes, rows):
        row.update(_paper_columns(recipe))
    rows.sort(key=lambda row: -row["R@1, cosine"])
    best = rows[0]
    rows += [_baseline_row(label, found) for label, found in distinct_baselines(results).items()]
    table = _table(rows)
    with replacing(output / "comparison.md") as temporary:
        temporary.write_text(table + "\n")
    folders = {row["recipe"]: output / row["recipe"] for row in rows if row["recipe"] in histories}
    page = output / "comparison.html"
    _write_page(page, rows, histories, forwarded, folders)
    for folder in folders.values():
        add_link(folder / REPORT, page, "Comparison")
    print(f"\n{table}\n\nbest: {best['recipe']}, cosine R@1 {best['R@1, cosine']:.1f} %")
    print(f"pictures: {page}")


def _row(name: str, result: Mapping[str, Any]) -> Row:
    from experiments.report.scores import CATALOG

    recall = result["recall"]
    row: Row = {"recipe": name}
    for key in ROW_KEYS:
        row[f"R@1, {key.split(', ')[1]}"] = 100 * recall[key]["1"]
    # A run of an earlier version has none; NaN, without any class of two images, is None.
    precision = result.get("scores", {}).get("map@r/cosine")
    row["MAP@R, cosine"] = None if precision is None else 100 * precision
    in_catalog = f"{CATALOG}, cosine"
    if in_catalog in recall:
        row[f"{CATALOG}, R@1"] = 100 * recall[in_catalog]["1"]
    if "accuracy" in result:
        row["accuracy"] = 100 * result["accuracy"]
    return {**row, "training, s": result["train_seconds"], "whole run, s": result["seconds"]}


def _baseline_row(label: str, rows: Rows) -> Row:
    """Return the table's line of a baseline."""
    from experiments.report.scores import CATALOG

    places = {
        "R@1, cosine": ("cosine", "1"),
        "R@1, l2": ("l2", "1"),
        "MAP@R, cosine": ("cosine", "MAP@R"),
        f"{CATALOG}, R@1": (f"{CATALOG}, cosine", "1"),
    }
    found = {
        column: 100 * rows[row][k] for column, (row, k) in places.items() if k in rows.get(row, {})
    }
    return {"recipe": label, **found}


def _paper_columns(recipe: pathlib.Path) -> Row:
    """Return the R@1 that the recipe's paper prints, for each distance."""
    from experiments.report.scores import paper_rows

    rows = paper_rows(paper_scores(recipe))
    return {f"R@1, {name}": 100 * row[1] for name, row in rows.items() if 1 in row}


def _table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table, columns aligned."""
    columns = _columns(rows)
    return markdown_table([columns, *([_shown(row.get(name)) for name in columns] for row in rows)])


def _columns(rows: Sequence[Row]) -> list[str]:
    """What some row has a value of, in the order of the rows."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _shown(value: str | float | None) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:.1f}"


def _write_page(
    path: pathlib.Path,
    rows: Sequence[Row],
    histories: Mapping[str, History],
    forwarded: Sequence[str],
    folders: Mapping[str, pathlib.Path],
) -> None:
    from experiments.report.page import picture_cards, write_page
    from experiments.report.retrieval_grid import grid_html

    columns = _columns(rows)
    table = html_table(
        columns,
        [
            (_linked(row["recipe"], folders), [_shown(row.get(name)) for name in columns[1:]])
            for row in rows
        ],
    )
    pictures = {
        "R@1, cosine": bars_svg({row["recipe"]: row["R@1, cosine"] for row in rows}),
        "R@1 over epochs": lines_svg("recall", histories, "test/recall@1/cosine", 100, "R@1, %"),
        "Accuracy over epochs": lines_svg("accuracy", histories, "test/accuracy", 100, "%"),
    }
    pictures["Tightness and contrastive part over training"] = paths_svg(histories)
    given = f'<p class="soft">{html.escape(" ".join(forwarded))}</p>' if forwarded else ""
    note = (
        '<p class="soft">Each recipe leads to its report. Losses have no scale in common: of each, '
        "the way over training from the open circle to the full one is drawn for itself.</p>"
    )
    body = [f'{given}<section class="card scroll">{table}{note}</section>', picture_cards(pictures)]
    grid = _pictures(folders)
    if grid is not None:
        body.append(grid_html(grid.rows, grid.title, grid.note))
    write_page(path, "Comparison", "\n".join(body))


def _pictures(folders: Mapping[str, pathlib.Path]) -> Grid | None:
    """The same queries by each run; None where the images are not there, or not the same."""
    from experiments.options import data
    from experiments.report.same_queries import same_queries
    from experiments.training.run_files import FLAGS_FILE

    first = next(iter(folders.values()))
    options = parse(RunOptions, ["compare", f"--flagfile={first / FLAGS_FILE}"])
    try:
        images = data.load(options)
    except (ValueError, OSError):  # moved, or not on this machine: the scores need none
        return None
    return same_queries(folders, images, data.evaluation_transform(options))


def _linked(recipe: str, folders: Mapping[str, pathlib.Path]) -> str:
    from experiments.training.run_files import REPORT

    shown = html.escape(recipe)
    if recipe not in folders or not (folders[recipe] / REPORT).is_file():
        return shown
    address = urllib.parse.quote(f"{folders[recipe].name}/{REPORT}")
    return f'<a href="{address}">{shown}</a>'


if __name__ == "__main__":
    sys.exit(run_command(main, goes_on="the same command goes on where it stopped"))
