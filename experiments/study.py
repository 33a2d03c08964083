"""`python -m experiments.study --recipes=A.flags,B.flags`: over seeds, scores with intervals.

With `--search` the recipes' hyper-parameters are found first, on folds of the training classes.
"""

from __future__ import annotations

import dataclasses
import html
import json
import math
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.evaluation.intervals import Difference, Interval, differences, mean_interval
from experiments.evaluation.scores import Rows, compared, label_of
from experiments.evaluation.tables import markdown_table
from experiments.options import (
    RunOptions,
    UsageError,
    declarations,
    given_words,
    option,
    parse,
    run_command,
)
from experiments.pages.figures import intervals_svg
from experiments.training.child_runs import flag_files, run_recipe

if TYPE_CHECKING:
    from experiments.tuning.protocol import RecipeSearch, SearchResult

_STUDY, _SEARCH = "Study", "Search"
_MOST_SEEDS = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyOptions(RunOptions):
    """Which recipes, how many seeds, and what each run is given besides."""

    command = "experiments.study"
    intro = """Repeat recipes over seeds: what each scores, with a 95 % interval, and which
differences from the best are larger than chance.

  python -m experiments.study --recipes=A.flags,B.flags --seeds=5 [--flag=value ...]

Every flag but these goes to each run, and what a --flagfile holds; the seeds begin at --seed.
Repeating the command continues where it stopped, and more --seeds add to what is there.

  python -m experiments.study --recipes=A.flags,B.flags --search=learning_rate=1e-4:1e-2:log \\
      --search=A/margin=0.1:1 --trials=20 --folds=4 --seeds=5

first searches each recipe's hyper-parameters (Musgrave et al. 2020): a trial trains on the training
classes but for one fold and is measured on that, fold by fold; the mean MAP@R counts. The first
trial is the recipe as it is, as far as the bounds take it in. Then the best settings are repeated
over the seeds on all training classes, and measured on the test classes, which nothing has seen
before. The same command started twice, here or elsewhere, shares the work.
"""

    recipes: tuple[str, ...] = option(
        (),
        _STUDY,
        "Recipes, here or among the packaged ones; patterns such as glyphs_*.flags.",
    )
    seeds: int = option(
        5, _STUDY, "How many runs of each recipe.", lower_bound=2, upper_bound=_MOST_SEEDS
    )
    output_dir: str = option(
        "runs/study",
        _STUDY,
        "Each run goes into RECIPE/seed-S in it; study.html, study.md and study.json beside them.",
    )
    search: tuple[str, ...] = option(
        (),
        _SEARCH,
        "A hyper-parameter: NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=WORD,WORD, NAME a flag of a "
        "run or an argument of its loss; RECIPE/NAME=... for one recipe alone. May be repeated.",
        repeated=True,
    )
    trials: int = option(50, _SEARCH, "How many settings are tried of each recipe.", lower_bound=1)
    folds: int = option(
        4,
        _SEARCH,
        "Into how many parts the training classes are cut; a trial trains once for each.",
        lower_bound=2,
    )
    storage: str | None = option(
        None,
        _SEARCH,
        "URL of a database where processes on several machines find each other's trials, such as "
        "postgresql://HOST/NAME. Default: a file in output_dir.",
    )


_OF_THE_SEARCH = ("search", "trials", "folds", "storage")
_NOT_FORWARDED = (
    *("recipes", "seeds", "seed", "output_dir", "flagfile", "debug", "help"),
    *_OF_THE_SEARCH,
)


class _Job(NamedTuple):
    """A run: its recipe's flag file, seed, folder and further flags."""

    recipe: pathlib.Path
    seed: int
    folder: pathlib.Path
    words: list[str]


def main(argv: list[str]) -> None:
    """Run what is missing, then say what it tells."""
    options = parse(StudyOptions, argv)
    recipes, output = flag_files(options.recipes), pathlib.Path(options.output_dir)
    forwarded = given_words(
        options, [name for name in declarations(StudyOptions) if name not in _NOT_FORWARDED]
    )

    searches = _searches(options, recipes, forwarded)

    from experiments.evaluation.held_folder import waiting_for
    from experiments.training.run_files import note_other_images, read_finished

    # All storages before the first run: one that is refused has cost nothing.
    opened = [(search, search.open()) for search in searches]
    output.mkdir(parents=True, exist_ok=True)
    found = {search.recipe.stem: search.do(trials) for search, trials in opened}
    seeds = range(options.seed, options.seed + options.seeds)
    # Seed by seed, so that a study that is stopped has compared what it has.
    jobs = [_job(recipe, seed, output, forwarded, found) for seed in seeds for recipe in recipes]
    _run(jobs, output)
    results: dict[str, list[Mapping[str, Any]]] = {recipe.stem: [] for recipe in recipes}
    for job in jobs:
        results[job.recipe.stem].append(read_finished(job.folder)[0])
    note_other_images({f"{job.recipe.stem}, seed {job.seed}": job.folder for job in jobs})
    with waiting_for(output / ".study.lock"):  # two that share it end at the same time
        _tell(output, results, found, list(seeds), forwarded)


def _tell(
    output: pathlib.Path,
    results: Mapping[str, Sequence[Mapping[str, Any]]],
    found: Mapping[str, SearchResult],
    seeds: Sequence[int],
    forwarded: Sequence[str],
) -> None:
    """Write `study.json`, `study.md` and `study.html`, and print."""
    from experiments.evaluation.baselines import distinct_baselines
    from keras_dml._files.atomic import replacing

    scores = _scores(results)
    # No seed changes a baseline.
    baselines = distinct_baselines({recipe: of_one[0] for recipe, of_one in results.items()})
    rows = _rows(scores, baselines)
    tables = [markdown_table(rows)]
    of_folds = {stem: result.of.on_test_classes(result.best) for stem, result in found.items()}
    if of_folds:
        from experiments.tuning.protocol import test_rows

        tables.append(markdown_table(test_rows(of_folds)))
    verdicts = {name: differences(of_one) for name, of_one in scores.items()}
    said = [_sentence(name, difference) for name, all_ in verdicts.items() for difference in all_]
    with replacing(output / "study.json") as path:
        kept: dict[str, Any] = {"seeds": seeds, "scores": scores, "forwarded": forwarded}
        if baselines:
            kept["baselines"] = baselines
        if found:
            kept["search"] = {stem: result.as_json() for stem, result in found.items()}
            kept["models of the folds"] = of_folds
        path.write_text(json.dumps(kept, indent=1) + "\n")
    of_searches = [result.sentence for result in found.values()]
    text = "\n".join(["\n\n".join(tables), "", *of_searches, *said])
    with replacing(output / "study.md") as path:
        path.write_text(text + "\n")
    _write_page(output / "study.html", rows, scores, said, len(seeds), forwarded, found, of_folds)
    print(f"\n{text}\npictures: {output / 'study.html'}")


def _searches(
    options: StudyOptions, recipes: Sequence[pathlib.Path], forwarded: Sequence[str]
) -> list[RecipeSearch]:
    """What is to be searched, all of it checked; nothing without `--search`.

    Raises:
        UsageError, ArgumentError: flags of a search that there is not, or that cannot be.
        MissingExtraError: Optuna is not installed.
    """
    if not options.search:
        alone = [name for name in _OF_THE_SEARCH if name in options.given]
        if alone:
            raise UsageError(
                f"{alone[0]} is for a search: give --search=NAME=LOW:HIGH. "
                f"Received: {alone[0]}={_without_password(getattr(options, alone[0]))}"
            )
        return []
    if options.storage and "://" not in options.storage:
        raise UsageError(
            "storage must be a URL such as postgresql://HOST/NAME or sqlite:////FOLDER/FILE. "
            f"Received: storage={options.storage}"
        )
    from experiments.tuning.space import check_recipes, read_space

    check_recipes(options.search, [recipe.stem for recipe in recipes])
    of_recipes = {}
    for recipe in recipes:
        words = [f"--flagfile={recipe}", *forwarded, f"--seed={options.seed}"]
        given = parse(RunOptions, ["study", *words])
        of_recipes[recipe] = given, read_space(options.search, recipe.stem, given)
    # What follows takes seconds to import: not before a mistyped flag is answered.
    import tensorflow as tf

    from experiments.tuning.protocol import RecipeSearch

    tf.config.set_visible_devices([], "GPU")  # they are the runs'
    searches = [
        RecipeSearch(
            recipe,
            pathlib.Path(options.output_dir) / recipe.stem,
            tuple(forwarded),
            given,
            space,
            options.folds,
            options.trials,
            options.storage,
            run_recipe,
        )
        for recipe, (given, space) in of_recipes.items()
    ]
    for search in searches:
        search.check()
    return searches


def _without_password(value: object) -> str:
    from experiments.tuning.space import without_password

    return without_password(" ".join(value) if isinstance(value, tuple) else str(value))


def _job(
    recipe: pathlib.Path,
    seed: int,
    output: pathlib.Path,
    forwarded: Sequence[str],
    found: Mapping[str, SearchResult],
) -> _Job:
    """A run on all training classes: as the recipe says, or as its search has found."""
    folder, words = output / recipe.stem / f"seed-{seed}", list(forwarded)
    if recipe.stem in found:
        result = found[recipe.stem]
        folder = result.of.final_folder(result.best, seed)
        words = result.of.final_words(result.best)
    return _Job(recipe, seed, folder, [*words, f"--seed={seed}"])


def _run(jobs: Sequence[_Job], output: pathlib.Path) -> None:
    """Run what is missing; what another process of the study is at is left to it."""
    from experiments.evaluation.held_folder import try_lock

    left, said = dict(enumerate(jobs, start=1)), False
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
        if left and not said:
            names = ", ".join(f"{job.recipe.stem}, seed {job.seed}" for job in left.values())
            print(f"waiting for another process: {names}", flush=True)
            said = True
        time.sleep(0.5 if left else 0)


def _scores(
    results: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, dict[str, list[float]]]:
    """Score -> recipe -> percent of each seed; what some run has not is left out."""
    found: dict[str, dict[str, list[float]]] = {}
    for score in compared():
        key = f"{score.at_1}/cosine"
        values = {
            recipe: [one["scores"].get(key) for one in all_] for recipe, all_ in results.items()
        }
        if all(value is not None for of_one in values.values() for value in of_one):
            found[label_of(score.at_1)] = {
                recipe: [score.scale * value for value in of_one if value is not None]
                for recipe, of_one in values.items()
            }
    return found


def _rows(
    scores: Mapping[str, Mapping[str, Sequence[float]]], baselines: Mapping[str, Rows]
) -> list[list[str]]:
    """Return the table: its head, a line for each recipe, the best in R@1 first, and baselines."""
    first = next(iter(scores.values()))
    order = sorted(first, key=lambda recipe: -mean_interval(first[recipe]).mean)
    lines = [
        [recipe, *(shown(mean_interval(of_one[recipe])) for of_one in scores.values())]
        for recipe in order
    ]
    by_label = {label_of(score.at_1): score for score in compared()}
    for label, found in baselines.items():
        of_one = found.get("cosine", {})
        shown_ = [by_label[name].text(of_one.get(by_label[name].at_1)) for name in scores]
        lines.append([label, *shown_])
    return [["recipe", *scores], *lines]


def shown(interval: Interval) -> str:
    """`85.4 ± 0.6`."""
    if math.isnan(interval.half_width):
        return f"{interval.mean:.1f}"
    return f"{interval.mean:.1f} ± {interval.half_width:.1f}"


def _sentence(score: str, difference: Difference) -> str:
    verdict = "larger than chance" if difference.beyond_chance else "no more than chance may give"
    return (
        f"{score}: {difference.best} leads {difference.name} by {shown(difference.interval)} "
        f"points, {verdict} (p = {difference.p:.2g})"
    )


def _write_page(
    path: pathlib.Path,
    rows: Sequence[Sequence[str]],
    scores: Mapping[str, Mapping[str, Sequence[float]]],
    said: Sequence[str],
    seeds: int,
    forwarded: Sequence[str],
    found: Mapping[str, SearchResult],
    of_folds: Mapping[str, Mapping[str, Mapping[str, float]]],
) -> None:
    from experiments.pages.page import picture_cards, write_page

    table = _html(rows)
    note = (
        f"Mean over {seeds} seeds, percent, ± half of the 95 % t-interval of the mean. Differences "
        "are paired over seeds; p is corrected for the number of recipes (Holm)."
    )
    if found:
        note += " Trained with the best settings of each search, measured once, at the end."
    given = f'<p class="soft">{html.escape(" ".join(forwarded))}</p>' if forwarded else ""
    verdicts = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in said)
    body = [
        f'{given}<section class="card scroll">{table}<p class="soft">{note}</p></section>',
        picture_cards({name: intervals_svg(name, of_one) for name, of_one in scores.items()}),
        f'<section class="card"><h2>What is larger than chance</h2><ul>{verdicts}</ul></section>'
        if verdicts
        else "",
        *(result.html() for result in found.values()),
        _of_the_folds(of_folds),
    ]
    write_page(path, "Study", "\n".join(body))


def _html(rows: Sequence[Sequence[str]]) -> str:
    from experiments.pages.page import html_table

    (name, *columns), *lines = rows
    return html_table([name, *columns], [(html.escape(first), cells) for first, *cells in lines])


def _of_the_folds(of_folds: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    if not of_folds:
        return ""
    from experiments.tuning.protocol import test_rows

    note = (
        "The best trial's models, one of each fold, on the test classes, percent: the mean of "
        "their scores, and the score of their embeddings in a row, each normalised. One seed."
    )
    return (
        '<section class="card scroll"><h2>Separate and concatenated</h2>'
        f'{_html(test_rows(of_folds))}<p class="soft">{note}</p></section>'
    )


if __name__ == "__main__":
    sys.exit(run_command(main, goes_on="the same command goes on where it stopped"))
