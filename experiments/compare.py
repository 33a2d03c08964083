"""`python -m experiments.compare`: compare recipes, which are trained first, or finished runs."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.options import (
    RunOptions,
    UsageError,
    command_line_only_words,
    given_for_run,
    option,
    parse,
    refuse_unused,
    run_command,
)
from experiments.options.visible import visible, visible_text
from experiments.recipes import paper_scores
from experiments.training.child_runs import flag_files, run_recipe

if TYPE_CHECKING:
    from experiments.evaluation.conclusions import PairedDifference
    from experiments.evaluation.embedded_sets import EmbeddedSets
    from experiments.pages.retrieval import Grid

# Flags that have an effect on finished runs.
_OF_RUNS = {"output_dir", "debug", "outside_paths", "import_modules", "trust_code"}


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
    intro = """Compare runs: a table, a bar chart, and the curves.

  keras-dml compare RUN_A RUN_B ... [--output_dir=DIR]

compares finished runs, folders of keras-dml run, which precede the flags. It says whether each run
is better than the first one, with 95 % intervals of the differences over test classes.

  keras-dml compare --recipes=A.flags,B.flags [--output_dir=DIR] [--flag=value ...]

runs the recipes first. All other flags, and the flags in a --flagfile, apply to each run. The same
command resumes after a stop. Finished runs are not repeated.
"""

    recipes: tuple[str, ...] = option(())
    output_dir: str = option("runs/compare")


def main(argv: list[str]) -> None:
    """Compare finished runs, or run the recipes that are not finished and compare all."""
    runs = list(itertools.takewhile(lambda word: not word.startswith("-"), argv[1:]))
    options = parse(CompareOptions, [argv[0], *argv[1 + len(runs) :]])
    output, forwarded = pathlib.Path(options.output_dir), given_for_run(options)
    if runs:
        for file in options.flagfile[:1]:
            raise UsageError(f"flagfile has no effect on finished runs, but got {file}.")
        refuse_unused(options, sorted(options.on_command_line - _OF_RUNS), "finished runs")
        folders, recipes = _folders(runs), []
    else:
        recipes = flag_files(options.recipes)
        folders = {recipe.stem: output / recipe.stem for recipe in recipes}

    from experiments.options.held_folder import held

    with held(output, "output_dir"):
        for number, recipe in enumerate(recipes, start=1):
            print(f"[{number}/{len(recipes)}] {visible(recipe.stem)}", flush=True)
            run_recipe(recipe, folders[recipe.stem], forwarded)
        papers = {recipe.stem: paper_scores(recipe) for recipe in recipes}
        _compare(options, folders, papers, forwarded, paired=bool(runs))


def _folders(runs: Sequence[str]) -> dict[str, pathlib.Path]:
    """Return the folders of finished runs by their names, or by their paths if names are equal.

    Raises:
        UsageError: There are fewer than two runs, or a folder does not belong to a finished run
            with scores of its own.
    """
    paths = [pathlib.Path(run).expanduser() for run in runs]
    names = [path.resolve().name for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    if len(set(names)) < max(2, len(names)):
        raise UsageError(f"compare must have two runs or more, but got {' '.join(runs)}.")
    from experiments.training.run_files import flag_file_of, read_finished

    for path in paths:
        result, _ = read_finished(flag_file_of(path).parent, whole=True)
        if result.get("measured"):
            raise UsageError(f"compare must have runs with scores, but got {path}, a final model.")
    return dict(zip(names, paths))


def _compare(
    options: CompareOptions,
    folders: Mapping[str, pathlib.Path],
    papers: Mapping[str, Mapping[str, float]],
    forwarded: Sequence[str],
    paired: bool,
) -> None:
    # These imports take seconds. A mistyped flag is reported before them.
    from experiments.evaluation.conclusions import below_raw_pixels
    from experiments.evaluation.figures import accuracy_difference
    from experiments.evaluation.result import REPORT, measurements_of
    from experiments.evaluation.tables import write_table
    from experiments.pages.comparison import (
        comparison_lines,
        table_of,
        with_differences,
        write_comparison_page,
    )
    from experiments.pages.page import add_link
    from experiments.training.run_files import note_other_images, read_finished

    results, histories = {}, {}
    sentences: list[str] = []
    for name, folder in folders.items():
        results[name], histories[name] = read_finished(folder, whole=True)
    lines = comparison_lines(results, papers)
    if not paired:
        note_other_images(folders)
    else:
        differences, sentences = _differences(folders)
        lines = with_differences(lines, next(iter(folders)), differences)
    table = write_table(output := pathlib.Path(options.output_dir) / "comparison", table_of(lines))
    page = output.with_name("comparison.html")
    in_order = {line.name: folders[line.name] for line in lines[: len(folders)]}
    grid = _same_queries(in_order, options)
    write_comparison_page(page, forwarded, lines, histories, grid, folders, sentences)
    for folder in folders.values():
        add_link(folder / REPORT, page, "Comparison")
    best = lines[0]
    print(f"\n{table}\n\nbest: {visible(best.name)}, cosine R@1 {100 * best.main:.1f} %")
    if below := below_raw_pixels(measurements_of(results[best.name])):
        print(below)
    if difference := accuracy_difference(histories):
        print(difference)
    for sentence in sentences:
        print(visible(sentence))
    print(visible_text(f"pictures: {page}\ntable: {output}.md, .csv, .tex"))


def _differences(
    folders: Mapping[str, pathlib.Path],
) -> tuple[dict[str, list[PairedDifference]], list[str]]:
    """Return the differences of each run from the first one, and a sentence about each run.

    Args:
        folders: Folders of the runs by name.

    Raises:
        UsageError: The test embeddings of a run are missing or damaged.
    """
    import numpy as np

    from experiments.evaluation.conclusions import paired_difference
    from experiments.evaluation.embedded_sets import embeddings_from_file
    from experiments.evaluation.scores import RECALL, SCORES, ScoredSet
    from experiments.training.run_files import (
        embeddings_of_run,
        measured_on_others,
        note_lost_images,
    )

    note_lost_images(folders.values())
    first, *others = folders
    sets = {
        name: embeddings_from_file(embeddings_of_run(folder)) for name, folder in folders.items()
    }
    of_classes = {
        name: ScoredSet(each.queries, (1,), each.gallery).of_classes()
        for name, each in sets.items()
    }
    found, sentences = {}, []
    for name in others:
        # A run of an earlier version lacks its list of images.
        pairs = zip(_labels(sets[first]), _labels(sets[name]))
        same = all(np.array_equal(one, other) for one, other in pairs)
        if not same or measured_on_others({each: folders[each] for each in (first, name)})[1]:
            sentences.append(
                f"The test images of {first} and {name} differ. Do not compare their scores."
            )
            continue
        scores = SCORES["map@r"], RECALL
        each = [paired_difference(score, of_classes[first], of_classes[name]) for score in scores]
        found[name] = [difference for difference in each if difference is not None]
        sentences += [difference.sentence(first, name) for difference in found[name][:1]]
    return found, sentences


def _labels(sets: EmbeddedSets) -> list[Any]:
    """Return the labels of the queries and of the gallery, which can be missing."""
    return [() if each is None else each.labels for each in (sets.queries, sets.gallery)]


def _same_queries(folders: Mapping[str, pathlib.Path], given: CompareOptions) -> Grid | None:
    """Return the same queries by each run; None if the images are missing or differ."""
    from experiments.options import data
    from experiments.pages.retrieval import same_queries
    from experiments.training.run_files import FLAGS_FILE

    first = next(iter(folders.values()))
    words = [f"--flagfile={first / FLAGS_FILE}", *command_line_only_words(given)]
    try:
        options = parse(RunOptions, ["compare", *words])
        images = data.load(options)
    except (ValueError, OSError):  # moved, or not on this machine
        return None
    return same_queries(folders, images, data.evaluation_transform(options))


if __name__ == "__main__":
    sys.exit(run_command(main, goes_on="the same command resumes"))
