"""The options of `experiments.study`."""

from __future__ import annotations

import dataclasses

from experiments.options import RunOptions, option

_STUDY, _SEARCH = "Study", "Search"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyOptions(RunOptions):
    """The recipes, the seeds, the search, and the flags of each run.

    Attributes:
        recipes: Recipes or flag files, or patterns such as glyphs_*.flags.
        seeds: Number of runs of each recipe.
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

    group = _STUDY

    command = "experiments.study"
    intro = """Repeat recipes over seeds: their scores with 95 % intervals, and the differences from
the best that are larger than chance.

  python -m experiments.study --recipes=A.flags,B.flags --seeds=5 [--flag=value ...]

All other flags go to each run. The seeds begin at --seed. The same command resumes the study, and
more --seeds add to it.

  python -m experiments.study --recipes=sop_ice.flags --grid=scale=1,16,32 --seeds=3

runs a recipe with each value of a flag. Scores that a paper prints for a value are next to ours.

  python -m experiments.study --recipes=A.flags,B.flags --search=learning_rate=1e-4:1e-2:log \\
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
    search: tuple[str, ...] = option((), _SEARCH, repeated=True)
    trials: int = option(50, _SEARCH, lower_bound=1)
    folds: int = option(4, _SEARCH, lower_bound=2)
    storage: str | None = option(None, _SEARCH)


OF_THE_SEARCH = ("search", "trials", "folds", "storage")
