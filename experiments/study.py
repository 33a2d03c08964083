"""`python -m experiments.study --recipes=A.flags,B.flags`: over seeds, scores with intervals.

`--search` first searches the recipes' hyperparameters, on folds of the training classes.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.options import RunOptions, UsageError, given_for_run, option, parse, run_command
from experiments.training.child_runs import flag_files, run_recipe
from experiments.tuning.grid import Setting, printed_scores, printed_table, read_grid

if TYPE_CHECKING:
    from experiments.tuning.protocol import RecipeSearch


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyOptions(RunOptions):
    """The recipes, the seeds, the search, and the flags of each run.

    Attributes:
        recipes: Recipes or flag files, or patterns such as glyphs_*.flags.
        seeds: Number of runs of each recipe, with the seeds --seed, --seed + 1, and so on.
        output_dir: Output folder: RECIPE/seed-S of each run, and the study's results.
        grid: Flag of a run with several values, NAME=V1,V2: each recipe runs with each value. Can
            be repeated for every combination.
        search: Hyperparameter: NAME=LOW:HIGH, NAME=LOW:HIGH:log, or NAME=WORD,WORD. NAME is a flag
            of a run. RECIPE/NAME=... is for one recipe. Can be repeated.
        trials: Number of trials of each recipe.
        folds: Number of folds of the training classes. A trial trains on each.
        storage: URL of a database that machines share, such as postgresql://HOST/NAME. Default: a
            file in output_dir.
    """

    group = "Study"

    command = "experiments.study"
    intro = """Repeat recipes over seeds: their scores with 95 % intervals, and the differences from
the best that are larger than chance.

  keras-dml study --recipes=A.flags,B.flags --seeds=5 [--flag=value ...]

All other flags go to each run. The seeds begin at --seed. The same command resumes the study, and
more --seeds add to it.

  keras-dml study --recipes=sop_ice.flags --grid=scale=1,16,32 --seeds=3

runs a recipe with each value of a flag. Scores that a paper prints for a value are next to ours.

  keras-dml study --recipes=A.flags,B.flags --search=learning_rate=1e-4:1e-2:log \\
      --search=A/margin=0.1:1 --trials=20 --folds=4 --seeds=5

first searches each recipe's hyperparameters (Musgrave et al. 2020). A trial trains on the training
classes without one fold and is evaluated on that fold, fold by fold. Its score is the mean MAP@R.
The first trial has the recipe's values, if they are within the bounds. The best settings then train
on all training classes over the seeds, and are evaluated on the test classes. Several processes
with the same command share the work.
"""

    recipes: tuple[str, ...] = option(())
    seeds: int = option(5, lower_bound=2, upper_bound=1000)
    output_dir: str = option("runs/study")
    grid: tuple[str, ...] = option((), repeated=True)
    search: tuple[str, ...] = option((), "Search", repeated=True)
    trials: int = option(50, "Search", lower_bound=1)
    folds: int = option(4, "Search", lower_bound=2)
    storage: str | None = option(None, "Search")


class _Job(NamedTuple):
    """A run: its recipe, seed, folder, further flags, and line in the tables."""

    recipe: pathlib.Path
    seed: int
    folder: pathlib.Path
    words: list[str]
    line: str


def main(argv: list[str]) -> None:
    """Run the searches and the runs that are missing, and write the results."""
    options = parse(StudyOptions, argv)
    recipes, output = flag_files(options.recipes), pathlib.Path(options.output_dir)
    forwarded = given_for_run(options, ["seed"])
    settings = read_grid(options.grid)
    if options.grid and options.search:
        raise UsageError(f"grid must not be given with search, but got {' '.join(options.grid)}.")
    searches = _searches(options, recipes, forwarded)

    from experiments.options.held_folder import held_by_equal_commands, waiting_for
    from experiments.training.run_files import note_other_images, read_finished
    from experiments.tuning.study_results import write_results

    for search in searches:
        search.check()
    # Several processes with the same command share the work.
    words = [*options.recipes, *forwarded, *options.grid, *options.search, str(options.folds)]
    with held_by_equal_commands(output, words):
        # Open all storages before the first run, so that an invalid one costs nothing.
        opened = [(search, search.open()) for search in searches]
        for search, trials in opened:
            search.do(trials)
        found = {search.recipe.stem: search for search in searches}
        seeds = [*range(options.seed, options.seed + options.seeds)]
        # Seed by seed, so that an interrupted study has results of every recipe.
        jobs = [
            _job(recipe, setting, seed, output, forwarded, found)
            for seed, recipe, setting in itertools.product(seeds, recipes, settings)
        ]
        _run(jobs)
        results: dict[str, list[Mapping[str, Any]]] = {job.line: [] for job in jobs}
        for job in jobs:
            results[job.line].append(read_finished(job.folder, whole=True)[0])
        note_other_images({f"{job.line}, seed {job.seed}": job.folder for job in jobs})
        printed = printed_table(results, printed_scores(recipes, settings))
        with waiting_for(output / ".study.lock"):
            text = write_results(
                output, results, found, seeds, forwarded, printed, bool(options.grid)
            )
        print(f"\n{text}\npictures: {output / 'study.html'}")


def _searches(
    options: StudyOptions, recipes: Sequence[pathlib.Path], forwarded: Sequence[str]
) -> list[RecipeSearch]:
    """Return the searches of the recipes. None without `--search`."""
    from experiments.tuning.space import read_space

    if not options.search:
        for name in ("search", "trials", "folds", "storage"):
            if name in options.given:
                raise UsageError(
                    f"{name} must be unset without --search=NAME=LOW:HIGH, but got "
                    f"{getattr(options, name)}."
                )
        return []
    if options.storage and "://" not in options.storage:
        raise UsageError(
            "storage must be a URL, such as postgresql://HOST/NAME or sqlite:////FOLDER/FILE, but "
            f"got {options.storage}."
        )
    names = [recipe.stem for recipe in recipes]
    of_recipes = {}
    for recipe in recipes:
        words = [f"--flagfile={recipe}", *forwarded, f"--seed={options.seed}"]
        given = parse(RunOptions, ["study", *words])
        of_recipes[recipe] = given, read_space(options.search, recipe.stem, given, names)
    from experiments.tuning.protocol import RecipeSearch

    return [
        RecipeSearch(
            recipe, pathlib.Path(options.output_dir) / recipe.stem, tuple(forwarded), given, space,
            options.folds, options.trials, options.storage, run_recipe,
        )
        for recipe, (given, space) in of_recipes.items()
    ]  # fmt: skip


def _job(
    recipe: pathlib.Path,
    setting: Setting,
    seed: int,
    output: pathlib.Path,
    forwarded: Sequence[str],
    found: Mapping[str, RecipeSearch],
) -> _Job:
    """Return a run on all training classes, with the best settings of the recipe's search."""
    folder = output / recipe.stem / setting.name / f"seed-{seed}"
    words = [*forwarded, *setting.words]
    if recipe.stem in found:
        folder = found[recipe.stem].final_folder(seed)
        words = found[recipe.stem].final_words()
    return _Job(recipe, seed, folder, [*words, f"--seed={seed}"], setting.line(recipe))


def _run(jobs: Sequence[_Job]) -> None:
    """Run the missing jobs, and wait for jobs that another process runs."""
    from experiments.options.held_folder import try_lock

    left, waits = dict(enumerate(jobs, start=1)), False
    while left:
        for place, job in list(left.items()):
            job.folder.parent.mkdir(parents=True, exist_ok=True)
            lock = try_lock(job.folder.with_name(f".{job.folder.name}.lock"))
            if lock is None:
                continue
            with lock:
                print(f"[{place}/{len(jobs)}] {job.line}, seed {job.seed}", flush=True)
                run_recipe(job.recipe, job.folder, job.words)
            del left[place]
        if left and not waits:
            names = ", ".join(f"{job.line}, seed {job.seed}" for job in left.values())
            print(f"waiting for another process: {names}", flush=True)
            waits = True
        time.sleep(0.5 if left else 0)


if __name__ == "__main__":
    sys.exit(run_command(main, goes_on="the same command resumes the study"))
