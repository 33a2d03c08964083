"""`python -m experiments.compare --recipes=A.flags,B.flags`: compare recipes."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from experiments.options import (
    RunOptions,
    command_line_only_words,
    given_for_run,
    option,
    parse,
    run_command,
)
from experiments.training.child_runs import flag_files, run_recipe

if TYPE_CHECKING:
    from experiments.pages.retrieval import Grid


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareOptions(RunOptions):
    """Options of the command: the recipes, and the flags of each run.

    Attributes:
        recipes: Recipes: files, names of packaged recipes, or patterns such as glyphs_*.flags.
        output_dir: Folder of comparison.html, of the table (comparison.md, .csv, .tex), and of a
            folder for each run.
    """

    group = "Comparison"

    command = "experiments.compare"
    intro = """Run several recipes and compare them: a table, a bar chart, and the curves.

  keras-dml compare --recipes=A.flags,B.flags [--output_dir=DIR] [--flag=value ...]

All other flags, and the flags in a --flagfile, apply to each run. The same command resumes after a
stop. Finished runs are not repeated.
"""

    recipes: tuple[str, ...] = option(())
    output_dir: str = option("runs/compare")


def main(argv: list[str]) -> None:
    """Run the recipes that are not finished, then compare all."""
    options = parse(CompareOptions, argv)
    recipes, output = flag_files(options.recipes), pathlib.Path(options.output_dir)
    forwarded = given_for_run(options)

    from experiments.evaluation.held_folder import held

    with held(output, "output_dir"):
        _compare(options, recipes, output, forwarded)


def _compare(
    options: CompareOptions,
    recipes: Sequence[pathlib.Path],
    output: pathlib.Path,
    forwarded: Sequence[str],
) -> None:
    # These imports take seconds. A mistyped flag is reported before them.
    from experiments.evaluation.conclusions import below_raw_pixels
    from experiments.evaluation.result import REPORT
    from experiments.evaluation.tables import write_table
    from experiments.evaluation.tracked import accuracy_difference
    from experiments.pages.comparison import (
        MAIN,
        comparison_lines,
        table_of,
        write_comparison_page,
    )
    from experiments.pages.page import add_link
    from experiments.recipes import paper_scores
    from experiments.training.run_files import note_other_images, read_finished

    results, histories = {}, {}
    folders = {recipe.stem: output / recipe.stem for recipe in recipes}
    for number, recipe in enumerate(recipes, start=1):
        print(f"[{number}/{len(recipes)}] {recipe.stem}", flush=True)
        run_recipe(recipe, folders[recipe.stem], forwarded)
        results[recipe.stem], histories[recipe.stem] = read_finished(
            folders[recipe.stem], whole=True
        )
    note_other_images(folders)
    papers = {recipe.stem: paper_scores(recipe) for recipe in recipes}
    lines = comparison_lines(results, papers)
    table = write_table(output / "comparison", table_of(lines))
    page = output / "comparison.html"
    in_order = {line["recipe"]: folders[line["recipe"]] for line in lines[: len(recipes)]}
    write_comparison_page(page, forwarded, lines, histories, _same_queries(in_order, options))
    for folder in folders.values():
        add_link(folder / REPORT, page, "Comparison")
    best = lines[0]["recipe"]
    print(f"\n{table}\n\nbest: {best}, cosine R@1 {100 * lines[0][MAIN]:.1f} %")
    if below := below_raw_pixels(results[best]["rows"]):
        print(below)
    if difference := accuracy_difference(histories):
        print(difference)
    print(f"pictures: {page}\ntable: {output / 'comparison'}.md, .csv, .tex")


def _same_queries(folders: Mapping[str, pathlib.Path], given: CompareOptions) -> Grid | None:
    """Return the same queries by each run; None if the images are missing or differ."""
    from experiments.options import data
    from experiments.pages.retrieval import same_queries
    from experiments.training.run_files import FLAGS_FILE

    first = next(iter(folders.values()))
    words = [f"--flagfile={first / FLAGS_FILE}", *command_line_only_words(given)]
    options = parse(RunOptions, ["compare", *words])
    try:
        images = data.load(options)
    except (ValueError, OSError):  # moved, or not on this machine
        return None
    return same_queries(folders, images, data.evaluation_transform(options))


if __name__ == "__main__":
    sys.exit(run_command(main, goes_on="the same command resumes"))
