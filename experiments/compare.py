"""`python -m experiments.compare --recipes=A.flags,B.flags`: several recipes side by side."""

import dataclasses
import fnmatch
import html
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from experiments import recipes as packaged
from experiments.options import (
    RunError,
    RunOptions,
    UsageError,
    declarations,
    option,
    parse,
    run_command,
    words_of,
)
from experiments.options.child import child_command, child_environment
from experiments.options.command_line import MISTAKE
from experiments.report.figures import History, bars_svg, lines_svg
from experiments.report.tables import html_table, markdown_table

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
# Losses of many kinds have no scale in common.
_MOST_LOSSES = 4
ROW_KEYS = ("embedding, cosine", "embedding, l2")


def main(argv: list[str]) -> None:
    """Run what is missing, then compare all."""
    options = parse(CompareOptions, argv)
    recipes, output = _flag_files(options.recipes), pathlib.Path(options.output_dir)
    forwarded = words_of(
        options,
        [
            name
            for name in declarations(CompareOptions)
            if name in options.given.difference(_NOT_FORWARDED)
        ],
    )

    # Keras comes with it: not before a mistyped flag is answered.
    from experiments.training.run_files import read_finished
    from keras_dml.atomic import replacing

    rows, histories = [], {}
    for number, recipe in enumerate(recipes, start=1):
        folder = output / recipe.stem
        print(f"[{number}/{len(recipes)}] {recipe.stem}", flush=True)
        _run(recipe, folder, forwarded)
        result, histories[recipe.stem] = read_finished(folder)
        rows.append(_row(recipe.stem, result))
    rows.sort(key=lambda row: -row["R@1, cosine"])
    table = _table(rows)
    with replacing(output / "comparison.md") as temporary:
        temporary.write_text(table + "\n")
    _write_page(output / "comparison.html", rows, histories, forwarded)
    best = rows[0]
    print(f"\n{table}\n\nbest: {best['recipe']}, cosine R@1 {best['R@1, cosine']:.1f} %")
    print(f"pictures: {output / 'comparison.html'}")


def _flag_files(names: Sequence[str]) -> list[pathlib.Path]:
    """The flag files that the names and patterns stand for."""
    files: list[pathlib.Path] = []
    for name in names:
        matches = [name]
        if any(mark in name for mark in "*?["):
            matches = fnmatch.filter(
                packaged.names(), name if name.endswith(".flags") else f"{name}.flags"
            )
            if not matches:
                raise UsageError(f"recipes has a pattern that no recipe matches. Received: {name}")
        files += [packaged.find_recipe(match) for match in matches]
    if not files:
        raise UsageError("recipes must name at least one recipe. Received: no recipes")
    stems = [path.stem for path in files]
    if len(set(stems)) < len(stems):
        raise UsageError(f"recipes must differ in name. Received: recipes={','.join(stems)}")
    return files


def _run(recipe: pathlib.Path, folder: pathlib.Path, forwarded: Sequence[str]) -> None:
    # In a process of its own: a run sets TensorFlow's seed, precision and devices for good.
    words = (f"--flagfile={recipe}", *forwarded, f"--output_dir={folder}")
    done = subprocess.run(
        child_command("experiments.run", *words),
        env=child_environment(),
        stdout=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        # A mistake in what the run was given is one in what the comparison was given.
        kind = UsageError if done.returncode == MISTAKE else RunError
        raise kind(f"{recipe.stem} ended with code {done.returncode}; what it said is above")


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
) -> None:
    from experiments.report.page import picture_cards, write_page

    columns = _columns(rows)
    table = html_table(
        columns,
        [
            (html.escape(row["recipe"]), [_shown(row.get(name)) for name in columns[1:]])
            for row in rows
        ],
    )
    pictures = {
        "R@1, cosine": bars_svg({row["recipe"]: row["R@1, cosine"] for row in rows}),
        "R@1 over epochs": lines_svg("recall", histories, "test/recall@1/cosine", 100, "R@1, %"),
        "Accuracy over epochs": lines_svg("accuracy", histories, "test/accuracy", 100, "%"),
    }
    if len(rows) <= _MOST_LOSSES:
        pictures["Training loss"] = lines_svg("loss", histories, "train/loss", label="loss")
    given = f'<p class="soft">{html.escape(" ".join(forwarded))}</p>' if forwarded else ""
    write_page(
        path,
        "Comparison",
        f'{given}<section class="card scroll">{table}</section>\n{picture_cards(pictures)}',
    )


if __name__ == "__main__":
    sys.exit(run_command(main, goes_on="the same command goes on where it stopped"))
