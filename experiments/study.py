"""`python -m experiments.study --recipes=A.flags,B.flags`: over seeds, scores with intervals."""

from __future__ import annotations

import dataclasses
import html
import json
import math
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.options import (
    RunOptions,
    declarations,
    option,
    parse,
    run_command,
    words_of,
)
from experiments.report.figures import intervals_svg
from experiments.report.intervals import Difference, Interval, differences, mean_interval
from experiments.report.tables import html_table, markdown_table
from experiments.training.child_runs import flag_files, run_recipe

_STUDY = "Study"
_MOST_SEEDS = 1000
# Name -> where a run's `result.json` has it.
SCORES = {"R@1": ("recall", "embedding, cosine", "1"), "MAP@R": ("scores", "map@r/cosine")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyOptions(RunOptions):
    """Which recipes, how many seeds, and what each run is given besides."""

    command = "experiments.study"
    intro = """Repeat recipes over seeds: what each scores, with a 95 % interval, and which
differences from the best are larger than chance.

  python -m experiments.study --recipes=A.flags,B.flags --seeds=5 [--flag=value ...]

Every flag but these goes to each run, and what a --flagfile holds; the seeds begin at --seed.
Repeating the command continues where it stopped, and more --seeds add to what is there.
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


_NOT_FORWARDED = ("recipes", "seeds", "seed", "output_dir", "flagfile", "debug", "help")


def main(argv: list[str]) -> None:
    """Run what is missing, then say what it tells."""
    options = parse(StudyOptions, argv)
    recipes, output = flag_files(options.recipes), pathlib.Path(options.output_dir)
    names = declarations(StudyOptions)
    forwarded = words_of(
        options, [name for name in names if name in options.given.difference(_NOT_FORWARDED)]
    )

    from experiments.training.run_files import read_finished
    from keras_dml.atomic import replacing

    output.mkdir(parents=True, exist_ok=True)
    seeds = range(options.seed, options.seed + options.seeds)
    results: dict[str, list[Mapping[str, Any]]] = {recipe.stem: [] for recipe in recipes}
    # Seed by seed, so that a study that is stopped has compared what it has.
    for number, seed in enumerate(seeds):
        for place, recipe in enumerate(recipes, start=number * len(recipes) + 1):
            print(f"[{place}/{len(seeds) * len(recipes)}] {recipe.stem}, seed {seed}", flush=True)
            folder = output / recipe.stem / f"seed-{seed}"
            run_recipe(recipe, folder, [*forwarded, f"--seed={seed}"])
            results[recipe.stem].append(read_finished(folder)[0])
    scores = _scores(results)
    table = markdown_table(_rows(scores))
    verdicts = {name: differences(of_one) for name, of_one in scores.items()}
    said = [_sentence(name, difference) for name, all_ in verdicts.items() for difference in all_]
    with replacing(output / "study.json") as path:
        kept = {"seeds": list(seeds), "scores": scores, "forwarded": forwarded}
        path.write_text(json.dumps(kept, indent=1) + "\n")
    with replacing(output / "study.md") as path:
        path.write_text("\n".join([table, "", *said]) + "\n")
    _write_page(output / "study.html", scores, said, len(seeds), forwarded)
    print("\n".join(["", table, "", *said]))
    print(f"pictures: {output / 'study.html'}")


def _scores(
    results: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, dict[str, list[float]]]:
    """Score -> recipe -> percent of each seed; what some run has not is left out."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, keys in SCORES.items():
        values = {recipe: [_value(one, keys) for one in all_] for recipe, all_ in results.items()}
        if all(value is not None for of_one in values.values() for value in of_one):
            found[name] = {
                recipe: [100 * value for value in of_one if value is not None]
                for recipe, of_one in values.items()
            }
    return found


def _value(result: Mapping[str, Any], keys: Sequence[str]) -> float | None:
    value: Any = result
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _rows(scores: Mapping[str, Mapping[str, Sequence[float]]]) -> list[list[str]]:
    """The table's head and a line for each recipe, the best in R@1 first."""
    first = next(iter(scores.values()))
    order = sorted(first, key=lambda recipe: -mean_interval(first[recipe]).mean)
    lines = [
        [recipe, *(shown(mean_interval(of_one[recipe])) for of_one in scores.values())]
        for recipe in order
    ]
    return [["recipe", *scores], *lines]


def shown(interval: Interval) -> str:
    """`85.4 ± 0.6`."""
    if math.isnan(interval.half_width):
        return f"{interval.mean:.1f}"
    return f"{interval.mean:.1f} ± {interval.half_width:.1f}"


def _sentence(score: str, difference: Difference) -> str:
    verdict = "larger than chance" if difference.beyond_chance else "no more than chance may give"
    return (
        f"{score}: the best leads {difference.name} by {shown(difference.interval)} points, "
        f"{verdict} (p = {difference.p:.2g})"
    )


def _write_page(
    path: pathlib.Path,
    scores: Mapping[str, Mapping[str, Sequence[float]]],
    said: Sequence[str],
    seeds: int,
    forwarded: Sequence[str],
) -> None:
    from experiments.report.page import picture_cards, write_page

    (_, *columns), *lines = _rows(scores)
    table = html_table(["recipe", *columns], [(html.escape(name), cells) for name, *cells in lines])
    note = (
        f"Mean over {seeds} seeds, percent, ± half of the 95 % t-interval of the mean. Differences "
        "are paired over seeds; p is corrected for the number of recipes (Holm)."
    )
    given = f'<p class="soft">{html.escape(" ".join(forwarded))}</p>' if forwarded else ""
    verdicts = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in said)
    body = [
        f'{given}<section class="card scroll">{table}<p class="soft">{note}</p></section>',
        picture_cards({name: intervals_svg(name, of_one) for name, of_one in scores.items()}),
        f'<section class="card"><h2>What is larger than chance</h2><ul>{verdicts}</ul></section>'
        if verdicts
        else "",
    ]
    write_page(path, "Study", "\n".join(body))


if __name__ == "__main__":
    sys.exit(run_command(main, goes_on="the same command goes on where it stopped"))
