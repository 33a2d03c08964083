"""`python -m experiments.study --recipes=A.flags,B.flags`: over seeds, scores with intervals.

`--search` first searches the recipes' hyperparameters, on folds of the training classes.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.options import (
    RunOptions,
    UsageError,
    declarations,
    given_words,
    option,
    parse,
    run_command,
)
from experiments.training.child_runs import flag_files, run_recipe

if TYPE_CHECKING:
    from experiments.tuning.protocol import RecipeSearch, SearchResult

_STUDY, _SEARCH = "Study", "Search"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyOptions(RunOptions):
    """The recipes, the seeds, the search, and the flags of each run."""

    command = "experiments.study"
    intro = """Repeat recipes over seeds: their scores with 95 % intervals, and the differences from
the best that are larger than chance.

  python -m experiments.study --recipes=A.flags,B.flags --seeds=5 [--flag=value ...]

All other flags go to each run. The seeds begin at --seed. The same command resumes the study, and
more --seeds add to it.

  python -m experiments.study --recipes=A.flags,B.flags --search=learning_rate=1e-4:1e-2:log \\
      --search=A/margin=0.1:1 --trials=20 --folds=4 --seeds=5

first searches each recipe's hyperparameters (Musgrave et al. 2020). A trial trains on the training
classes without one fold and is evaluated on that fold, fold by fold. Its score is the mean MAP@R.
The first trial has the recipe's values, if they are within the bounds. The best settings then train
on all training classes over the seeds, and are evaluated on the test classes. Several processes
with the same command share the work.
"""

    recipes: tuple[str, ...] = option(
        (), _STUDY, "Recipes or flag files, or patterns such as glyphs_*.flags."
    )
    seeds: int = option(
        5, _STUDY, "Number of runs of each recipe.", lower_bound=2, upper_bound=1000
    )
    output_dir: str = option(
        "runs/study", _STUDY, "Output folder: RECIPE/seed-S of each run, and the study's results."
    )
    search: tuple[str, ...] = option(
        (),
        _SEARCH,
        "Hyperparameter: NAME=LOW:HIGH, NAME=LOW:HIGH:log, or NAME=WORD,WORD. NAME is a flag of a "
        "run. RECIPE/NAME=... is for one recipe. Can be repeated.",
        repeated=True,
    )
    trials: int = option(50, _SEARCH, "Number of trials of each recipe.", lower_bound=1)
    folds: int = option(
        4, _SEARCH, "Number of folds of the training classes. A trial trains on each.",
        lower_bound=2,
    )  # fmt: skip
    storage: str | None = option(
        None,
        _SEARCH,
        "URL of a database that machines share, such as postgresql://HOST/NAME. Default: a file in "
        "output_dir.",
    )


_OF_THE_SEARCH = ("search", "trials", "folds", "storage")
_NOT_FORWARDED = (
    *("recipes", "seeds", "seed", "output_dir", "flagfile", "debug", "help"),
    *_OF_THE_SEARCH,
)


class _Job(NamedTuple):
    """A run: its recipe, seed, folder, and further flags."""

    recipe: pathlib.Path
    seed: int
    folder: pathlib.Path
    words: list[str]


def main(argv: list[str]) -> None:
    """Run the searches and the runs that are missing, and write the results."""
    options = parse(StudyOptions, argv)
    recipes, output = flag_files(options.recipes), pathlib.Path(options.output_dir)
    names = [name for name in declarations(StudyOptions) if name not in _NOT_FORWARDED]
    forwarded = given_words(options, names)
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
    jobs = [_job(recipe, seed, output, forwarded, found) for seed in seeds for recipe in recipes]
    _run(jobs)
    results: dict[str, list[Mapping[str, Any]]] = {recipe.stem: [] for recipe in recipes}
    for job in jobs:
        results[job.recipe.stem].append(read_finished(job.folder)[0])
    note_other_images({f"{job.recipe.stem}, seed {job.seed}": job.folder for job in jobs})
    with waiting_for(output / ".study.lock"):
        text = write_results(output, results, found, list(seeds), forwarded)
    print(f"\n{text}\npictures: {output / 'study.html'}")


def _searches(
    options: StudyOptions, recipes: Sequence[pathlib.Path], forwarded: Sequence[str]
) -> list[RecipeSearch]:
    """Return the checked searches of the recipes. None without `--search`."""
    from experiments.tuning.space import check_recipes, read_space, without_password

    if not options.search:
        for name in _OF_THE_SEARCH:
            if name in options.given:
                raise UsageError(
                    f"{name} is for a search: give --search=NAME=LOW:HIGH. "
                    f"Received: {name}={without_password(str(getattr(options, name)))}"
                )
        return []
    if options.storage and "://" not in options.storage:
        raise UsageError(
            "storage must be a URL such as postgresql://HOST/NAME or sqlite:////FOLDER/FILE. "
            f"Received: storage={options.storage}"
        )
    check_recipes(options.search, [recipe.stem for recipe in recipes])
    of_recipes = {}
    for recipe in recipes:
        words = [f"--flagfile={recipe}", *forwarded, f"--seed={options.seed}"]
        given = parse(RunOptions, ["study", *words])
        of_recipes[recipe] = given, read_space(options.search, recipe.stem, given)
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
    seed: int,
    output: pathlib.Path,
    forwarded: Sequence[str],
    found: Mapping[str, SearchResult],
) -> _Job:
    """Return a run on all training classes, with the best settings of the recipe's search."""
    folder, words = output / recipe.stem / f"seed-{seed}", list(forwarded)
    if recipe.stem in found:
        result = found[recipe.stem]
        folder = result.of.final_folder(result.best, seed)
        words = result.of.final_words(result.best)
    return _Job(recipe, seed, folder, [*words, f"--seed={seed}"])


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
                print(f"[{place}/{len(jobs)}] {job.recipe.stem}, seed {job.seed}", flush=True)
                run_recipe(job.recipe, job.folder, job.words)
            del left[place]
        if left and not waits:
            names = ", ".join(f"{job.recipe.stem}, seed {job.seed}" for job in left.values())
            print(f"waiting for another process: {names}", flush=True)
            waits = True
        time.sleep(0.5 if left else 0)


if __name__ == "__main__":
    sys.exit(run_command(main, goes_on="the same command resumes the study"))
