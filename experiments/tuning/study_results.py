"""The results of a study: its scores, its tables, its verdicts, and its page."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.evaluation.conclusions import differences, distinct_baselines, mean_interval
from experiments.evaluation.figures import Means, Trials
from experiments.evaluation.measurement import EMBEDDING, Measurement
from experiments.evaluation.result import baseline_json, baselines_of, measurements_of
from experiments.evaluation.score_table import text_of
from experiments.evaluation.scores import Score, compared
from experiments.evaluation.tables import MISSING, markdown_table, write_table
from experiments.options.errors import UsageError
from experiments.pages.figures import svgs
from experiments.pages.page import write_page
from experiments.tuning.protocol import RecipeSearch
from experiments.tuning.space import words_of_trial
from keras_dml._common.errors import without_passwords
from keras_dml._files.manifest import Manifest

OfFolds = Mapping[str, Mapping[str, Mapping[str, float]]]


def write_results(
    output: pathlib.Path,
    results: Mapping[str, Sequence[Mapping[str, Any]]],
    searches: Mapping[str, RecipeSearch],
    seeds: Sequence[int],
    forwarded: Sequence[str],
    printed: list[list[str]],
    in_order: bool,
) -> str:
    """Write `study.json`, the table `study.md`, `.csv`, `.tex`, and `study.html`.

    Args:
        output: Folder of the study.
        results: Results of the runs of each recipe, seed by seed.
        searches: Searches that are done, by recipe.
        seeds: The seeds.
        forwarded: Flags of every run.
        printed: The table of printed scores next to ours, from `experiments.tuning.grid`. Empty
            without printed scores.
        in_order: Whether lines stay in the order of `results`. If not, the best is first.

    Returns:
        The text of `study.md`.

    Raises:
        UsageError: No score is in the results of all runs.
    """
    forwarded = [without_passwords(word) for word in forwarded]
    by_label = {score.label_at_1: score for score in compared()}
    scores = _scores(results, by_label)
    if not scores:
        raise UsageError(
            f"The runs in {output} must have a score in common, but got none. Delete the folders "
            "of runs whose result.json has no scores, and the same command repeats these runs."
        )
    # The seed does not change a baseline.
    baselines = distinct_baselines(
        {recipe: baselines_of(of_one[0]) for recipe, of_one in results.items()}
    )
    of_folds = {stem: search.on_test_classes() for stem, search in searches.items()}
    verdicts = [
        f"{name}: {difference.text(by_label[name].digits)}"
        for name, of_one in scores.items()
        for difference in differences(of_one, by_label[name].higher_is_better is not False)
    ]
    written: dict[str, Any] = {"seeds": seeds, "scores": scores, "forwarded": forwarded}
    if baselines:
        written["baselines"] = {name: baseline_json(each) for name, each in baselines.items()}
    if searches:
        written["search"] = {stem: search.as_json() for stem, search in searches.items()}
        written["models of the folds"] = of_folds
    Manifest(output).write_text("study.json", json.dumps(written, indent=1) + "\n")
    shown = {label: of_one if in_order else _best_first(of_one) for label, of_one in scores.items()}
    tables = [_rows(shown, by_label, baselines), *([_fold_rows(of_folds)] if of_folds else [])]
    sentences = [*(search.sentence for search in searches.values()), *verdicts]
    below = [*map(markdown_table, tables[1:]), markdown_table(printed) if printed else ""]
    below.append("\n".join(sentences))
    text = write_table(output / "study", tables[0], "\n\n".join(filter(None, below)))
    note = (
        f"Mean over {len(seeds)} seeds, ± half of the 95 % t-interval of the mean. A lead "
        "is larger than chance if the p of the t-test of differences paired over seeds, corrected "
        "for the number of recipes (Holm), is below 0.05."
    )
    if searches:
        note += " The runs have the best settings of each search, and are evaluated at their end."
    write_page(
        output / "study.html",
        "Study",
        template="study.html",
        forwarded=" ".join(forwarded),
        tables=tables,
        note=note,
        pictures=svgs(
            {
                label: Means(of_one, by_label[label].axis, by_label[label].digits)
                for label, of_one in shown.items()
            }
        ),
        printed=printed,
        verdicts=verdicts,
        searches=[_search(search) for search in searches.values()],
    )
    return text


def _scores(
    results: Mapping[str, Sequence[Mapping[str, Any]]], by_label: Mapping[str, Score]
) -> dict[str, dict[str, list[float]]]:
    """Return the percentages of each score and recipe. A score that a run lacks is left out."""
    runs = {
        recipe: [measurements_of(result) for result in of_one] for recipe, of_one in results.items()
    }
    found: dict[str, dict[str, list[float]]] = {}
    for label, score in by_label.items():
        values = {
            recipe: [score.scale * each.value for of_run in of_one if (each := score.of(of_run))]
            for recipe, of_one in runs.items()
        }
        if all(len(values[recipe]) == len(runs[recipe]) for recipe in runs) and not any(
            math.isnan(value) for of_one in values.values() for value in of_one
        ):
            found[label] = values
    return found


def _best_first(of_one: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    return dict(sorted(of_one.items(), key=lambda item: -mean_interval(item[1]).mean))


def _rows(
    shown: Mapping[str, Mapping[str, Sequence[float]]],
    by_label: Mapping[str, Score],
    baselines: Mapping[str, Sequence[Measurement]],
) -> list[list[str]]:
    """Return the head, a row for each recipe in the order of the first score, and the baselines."""
    rows = [["recipe", *shown]]
    for recipe in next(iter(shown.values())):
        means = {label: mean_interval(of_one[recipe]) for label, of_one in shown.items()}
        rows.append([recipe, *(mean.text(by_label[label].digits) for label, mean in means.items())])
    for name, found in baselines.items():
        own = [dataclasses.replace(each, part=EMBEDDING) for each in found]
        cells = [by_label[label].of(own) for label in shown]
        rows.append([name, *(MISSING if each is None else text_of(each) for each in cells)])
    return rows


def _fold_rows(of_folds: OfFolds) -> list[list[str]]:
    """Return the head and a row for each recipe: the scores of the folds' models, percent."""
    names = list(dict.fromkeys(name for of_one in of_folds.values() for name in of_one))
    columns = [(name, kind) for name in names for kind in ("separate", "concatenated")]
    return [
        ["models of the folds", *(f"{name}, {kind}" for name, kind in columns)],
        *(
            [recipe, *(_percent(of_one.get(name, {}).get(kind)) for name, kind in columns)]
            for recipe, of_one in of_folds.items()
        ),
    ]


def _percent(fraction: float | None) -> str:
    return "–" if fraction is None else f"{100 * fraction:.1f}"


def _search(search: RecipeSearch) -> dict[str, Any]:
    """Return the values of a search on the page."""
    trials = sorted(search.done, key=lambda trial: trial.number)
    scores = [100 * each.score if each.score else None for each in trials]
    figure = Trials(
        [each.values for each in trials],
        scores,
        trials.index(search.best),
        [parameter.name for parameter in search.space if parameter.log],
        "MAP@R, %, mean of the folds",
    )
    classes = search.classes_of_folds()
    rows = [
        (str(fold), [f"{count} classes", f"{sum(classes) - count} classes", f"{100 * score:.1f}"])
        for fold, (count, score) in enumerate(zip(classes, search.scores), start=1)
    ]
    return {
        "recipe": search.recipe.stem,
        "trials": len(trials),
        "folds": search.folds,
        "best": search.best.number + 1,
        "words": words_of_trial(search.best.values),
        "epochs": search.epochs,
        "any_diverged": None in scores,
        "pictures": svgs({f"Trials of {search.recipe.stem}": figure}),
        "rows": rows,
    }
