"""The options of `experiments.study`."""

from __future__ import annotations

import dataclasses

from experiments.options import RunOptions, option

__all__ = ["NOT_FORWARDED", "OF_THE_SEARCH", "StudyOptions"]

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

    recipes: tuple[str, ...] = option(
        (), _STUDY, "Recipes or flag files, or patterns such as glyphs_*.flags."
    )
    seeds: int = option(
        5, _STUDY, "Number of runs of each recipe.", lower_bound=2, upper_bound=1000
    )
    output_dir: str = option(
        "runs/study", _STUDY, "Output folder: RECIPE/seed-S of each run, and the study's results."
    )
    grid: tuple[str, ...] = option(
        (),
        _STUDY,
        "Flag of a run with several values, NAME=V1,V2: each recipe runs with each value. Can be "
        "repeated for every combination.",
        repeated=True,
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


OF_THE_SEARCH = ("search", "trials", "folds", "storage")
NOT_FORWARDED = (
    *("recipes", "seeds", "seed", "grid", "output_dir", "flagfile", "debug", "help"),
    *OF_THE_SEARCH,
)
