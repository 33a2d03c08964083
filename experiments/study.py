"""`python -m experiments.study --recipes=A.flags,B.flags`: over seeds, scores with intervals.

`--search` first searches the recipes' hyperparameters, on folds of the training classes.
"""

from __future__ import annotations

import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.options import RunOptions, UsageError, given_for_run, parse, run_command
from experiments.training.child_runs import flag_files, run_recipe
from experiments.tuning.grid import Setting, printed_scores, printed_table, read_grid
from experiments.tuning.study_options import OF_THE_SEARCH, StudyOptions

if TYPE_CHECKING:
    from experiments.tuning.protocol import RecipeSearch, SearchResult


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

    from experiments.evaluation.held_folder import waiting_for
    from experiments.training.run_files import note_other_images, read_finished
    from experiments.tuning.study_results import write_results

    # Open all storages before the first run, so that an invalid one costs nothing.
    opened = [(search, search.open()) for search in searches]
    output.mkdir(parents=True, exist_ok=True)
    found = {search.recipe.stem: search.do(trials) for search, trials in opened}
    seeds = range(options.seed, options.seed + options.seeds)
    # Seed by seed, so that an interrupted study has results of every recipe.
    jobs = [
        _job(recipe, setting, seed, output, forwarded, found)
        for seed in seeds
        for recipe in recipes
        for setting in settings
    ]
    _run(jobs)
    results: dict[str, list[Mapping[str, Any]]] = {job.line: [] for job in jobs}
    for job in jobs:
        results[job.line].append(read_finished(job.folder)[0])
    note_other_images({f"{job.line}, seed {job.seed}": job.folder for job in jobs})
    printed = printed_table(results, printed_scores(recipes, settings))
    with waiting_for(output / ".study.lock"):
        text = write_results(
            output, results, found, list(seeds), forwarded, printed, bool(options.grid)
        )
    print(f"\n{text}\npictures: {output / 'study.html'}")


def _searches(
    options: StudyOptions, recipes: Sequence[pathlib.Path], forwarded: Sequence[str]
) -> list[RecipeSearch]:
    """Return the checked searches of the recipes. None without `--search`."""
    from experiments.tuning.space import read_space, without_password

    if not options.search:
        for name in OF_THE_SEARCH:
            if name in options.given:
                raise UsageError(
                    f"{name} must be unset without --search=NAME=LOW:HIGH, but got "
                    f"{without_password(str(getattr(options, name)))}."
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
    import tensorflow as tf

    from experiments.tuning.protocol import RecipeSearch

    tf.config.set_visible_devices([], "GPU")  # the runs use them
    searches = [
        RecipeSearch(
            recipe, pathlib.Path(options.output_dir) / recipe.stem, tuple(forwarded), given, space,
            options.folds, options.trials, options.storage, run_recipe,
        )
        for recipe, (given, space) in of_recipes.items()
    ]  # fmt: skip
    for search in searches:
        search.check()
    return searches


def _job(
    recipe: pathlib.Path,
    setting: Setting,
    seed: int,
    output: pathlib.Path,
    forwarded: Sequence[str],
    found: Mapping[str, SearchResult],
) -> _Job:
    """Return a run on all training classes, with the best settings of the recipe's search."""
    folder = output / recipe.stem / setting.name / f"seed-{seed}"
    words = [*forwarded, *setting.words]
    if recipe.stem in found:
        result = found[recipe.stem]
        folder = result.of.final_folder(result.best, seed)
        words = result.of.final_words(result.best)
    return _Job(recipe, seed, folder, [*words, f"--seed={seed}"], setting.line(recipe))


def _run(jobs: Sequence[_Job]) -> None:
    """Run the missing jobs, and wait for jobs that another process runs."""
    from experiments.evaluation.held_folder import try_lock

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
