"""`python -m experiments.compare --recipes=A.flags,B.flags`: compare recipes."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from experiments.evaluation.baselines import distinct_baselines
from experiments.evaluation.result import REPORT
from experiments.evaluation.scores import (
    ACCURACY,
    CATALOG,
    DISTANCES,
    PAPER,
    RECALL,
    Rows,
    Score,
    compared,
    label_of,
    rows_of,
)
from experiments.evaluation.tables import markdown_table
from experiments.options import (
    RunOptions,
    declarations,
    given_words,
    option,
    parse,
    run_command,
)
from experiments.recipes import paper_scores
from experiments.training.child_runs import flag_files, run_recipe

if TYPE_CHECKING:
    from experiments.pages.retrieval import Grid

_COMPARISON = "Comparison"
# A line of the table: column -> value.
Line: TypeAlias = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareOptions(RunOptions):
    """Options of the command: the recipes, and the flags of each run."""

    command = "experiments.compare"
    intro = """Run several recipes and compare them: a table, a bar chart, and the curves.

  python -m experiments.compare --recipes=A.flags,B.flags [--output_dir=DIR] [--flag=value ...]

All other flags, and the flags in a --flagfile, apply to each run. The same command resumes after a
stop. Finished runs are not repeated.
"""

    recipes: tuple[str, ...] = option(
        (),
        _COMPARISON,
        "Recipes: files, names of packaged recipes, or patterns such as glyphs_*.flags.",
    )
    output_dir: str = option(
        "runs/compare",
        _COMPARISON,
        "Folder of comparison.html, comparison.md, and of a folder for each run.",
    )


_MAIN = "R@1, cosine"
_NOT_FORWARDED = ("recipes", "output_dir", "flagfile", "debug", "help")


def main(argv: list[str]) -> None:
    """Run the recipes that are not finished, then compare all."""
    options = parse(CompareOptions, argv)
    recipes, output = flag_files(options.recipes), pathlib.Path(options.output_dir)
    forwarded = given_words(
        options, [name for name in declarations(CompareOptions) if name not in _NOT_FORWARDED]
    )

    # These imports take seconds. A mistyped flag is reported before them.
    from experiments.pages.links import add_link
    from experiments.training.run_files import note_other_images, read_finished
    from keras_dml._files.atomic import replacing

    results, histories = {}, {}
    for number, recipe in enumerate(recipes, start=1):
        folder = output / recipe.stem
        print(f"[{number}/{len(recipes)}] {recipe.stem}", flush=True)
        run_recipe(recipe, folder, forwarded)
        results[recipe.stem], histories[recipe.stem] = read_finished(folder)
    note_other_images({recipe.stem: output / recipe.stem for recipe in recipes})
    lines = [_line(recipe, results[recipe.stem]) for recipe in recipes]
    lines.sort(key=lambda line: -line[_MAIN])
    best = lines[0]
    baselines = distinct_baselines(results)
    lines += [{"recipe": name, **_scores(rows)} for name, rows in baselines.items()]
    columns = list(dict.fromkeys(column for line in lines for column in line))
    rows = [[_text(column, line.get(column)) for column in columns] for line in lines]
    table = markdown_table([columns, *rows])
    with replacing(output / "comparison.md") as temporary:
        temporary.write_text(table + "\n")
    page = output / "comparison.html"
    bars = {line["recipe"]: 100 * line[_MAIN] for line in lines}
    _write_page(page, forwarded, [columns, *rows], bars, histories)
    for recipe in recipes:
        add_link(output / recipe.stem / REPORT, page, "Comparison")
    print(f"\n{table}\n\nbest: {best['recipe']}, cosine R@1 {_text(_MAIN, best[_MAIN])} %")
    print(f"pictures: {page}")


def _line(recipe: pathlib.Path, result: Mapping[str, Any]) -> Line:
    """Return the line of a run."""
    rows = {name.removeprefix("embedding, "): row for name, row in result["rows"].items()}
    paper = rows_of(paper_scores(recipe), PAPER)
    return {
        "recipe": recipe.stem,
        **_scores(rows),
        **({"accuracy": 100 * result["accuracy"]} if "accuracy" in result else {}),
        "training, s": result["train_seconds"],
        "whole run, s": result["seconds"],
        **{
            f"R@1, {name}": 100 * row[RECALL.at_1]
            for name, row in paper.items()
            if RECALL.at_1 in row
        },
    }


def _scores(rows: Rows) -> Line:
    """Return the columns of the scores that the rows have."""
    found = {
        column: rows.get(row, {}).get(score.at_1) for column, (row, score) in _columns().items()
    }
    return {column: value for column, value in found.items() if value is not None}


def _columns() -> dict[str, tuple[str, Score]]:
    """Return column -> (its row in the table of a run, its score)."""
    found = {
        f"{label_of(score.at_1)}, {distance}": (str(distance), score)
        for score in compared()
        for distance in (DISTANCES if score.at_k else DISTANCES[:1])
    }
    return found | {f"{CATALOG}, R@1": (f"{CATALOG}, cosine", RECALL)}


def _text(column: str, value: str | float | None) -> str:
    if value is None or isinstance(value, str):
        return value or "–"
    columns = _columns()
    return columns[column][1].text(value) if column in columns else f"{value:.1f}"


def _write_page(
    page: pathlib.Path,
    forwarded: Sequence[str],
    table: Sequence[Sequence[str]],
    bars: Mapping[str, float],
    histories: Mapping[str, Sequence[Mapping[str, float]]],
) -> None:
    from markupsafe import Markup

    from experiments.pages import figures
    from experiments.pages.page import write_page

    def linked(name: str) -> str:
        if not (page.parent / name / REPORT).is_file():
            return name
        address = urllib.parse.quote(f"{name}/{REPORT}")
        return Markup('<a href="{}">{}</a>').format(address, name)

    curves = {
        f"{label_of(score.at_1)} over epochs": figures.lines_svg(
            score.name, histories, f"test/{score.at_1}/cosine", score.scale, score.axis
        )
        for score in compared()
    }
    accuracies = figures.lines_svg("accuracy", histories, ACCURACY, 100, "%")
    columns, *rows = table
    write_page(
        page,
        "Comparison",
        template="comparison.html",
        forwarded=" ".join(forwarded),
        columns=columns,
        rows=[(linked(name), cells) for name, *cells in rows],
        pictures={
            _MAIN: figures.bars_svg(bars),
            **curves,
            "Accuracy over epochs": accuracies,
            "Tightness and contrastive part over training": figures.paths_svg(histories),
        },
        grid=_same_queries({name: page.parent / name for name in bars if name in histories}),
    )


def _same_queries(folders: Mapping[str, pathlib.Path]) -> Grid | None:
    """Return the same queries by each run; None if the images are missing or differ."""
    from experiments.options import data
    from experiments.pages.retrieval import same_queries
    from experiments.training.run_files import FLAGS_FILE

    first = next(iter(folders.values()))
    options = parse(RunOptions, ["compare", f"--flagfile={first / FLAGS_FILE}"])
    try:
        images = data.load(options)
    except (ValueError, OSError):  # moved, or not on this machine
        return None
    return same_queries(folders, images, data.evaluation_transform(options))


if __name__ == "__main__":
    sys.exit(run_command(main, goes_on="the same command resumes"))
