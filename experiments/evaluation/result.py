"""The results of evaluators, and the result of a run or of an evaluation with its JSON file."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from experiments.evaluation.measurement import (
    EMBEDDING,
    PAPER,
    SEARCHES,
    Measurement,
    is_baseline,
    named,
)
from experiments.evaluation.scores import DISTANCES, RECALL, SCORES, ClassScores, as_json

if TYPE_CHECKING:
    from experiments.evaluation.embedded_sets import EmbeddedSets

#: Rows of scores in a JSON file: name of a row -> {name of a score: value}.
Rows: TypeAlias = dict[str, dict[str, float]]
#: Files in the folder of a run.
REPORT, FLAGS_FILE, EVALUATION = "report.html", "flags.txt", "evaluation.json"
#: Files of the baselines in a run's folder.
UNTRAINED_FILE, RAW_PIXELS_FILE = "untrained_backbone.json", "raw_pixels.json"
NATIVE_FILE = "untrained_backbone_at_native_size.json"
_DISTANCES = "|".join(DISTANCES)
_SEARCHES = "|".join(filter(None, SEARCHES.values()))
_OF_IMAGES = re.compile(rf"({'|'.join(SEARCHES)})/")
# Inverse of `Measurement.row` and `Measurement.search`.
_ROW = re.compile(
    rf"((?P<part>.+?), )??((?P<search>{_SEARCHES}), )?(?P<distance>{_DISTANCES})", re.DOTALL
)


@dataclasses.dataclass(frozen=True)
class Findings:
    """The results of an evaluator at the end of a run.

    Attributes:
        measurements: The scores. With a distance, they are in the table.
        classes: "embedding" or the name of a baseline -> its scores of each class.
        lines: (label, text) pairs below the table, and in the report's summary.
        information: (label, text) pairs of the instruments of information.
        summary: (label, text) pairs at the end of the report's summary.
        figures: Title -> a figure in the report, from `experiments.evaluation.figures`.
        printed: Further lines below the table on the terminal.
        result: Entries of `result.json`.
    """

    measurements: Sequence[Measurement] = ()
    classes: Mapping[str, ClassScores] = dataclasses.field(default_factory=dict)
    lines: Sequence[tuple[str, str]] = ()
    information: Sequence[tuple[str, str]] = ()
    summary: Sequence[tuple[str, str]] = ()
    figures: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    printed: Sequence[str] = ()
    result: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def together(cls, several: Iterable[Findings]) -> Findings:
        """Return the findings of several evaluators as one. Entries of one name are joined."""
        several = list(several)
        merged: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            values = [getattr(one, field.name) for one in several]
            if isinstance(getattr(cls(), field.name), dict):
                merged[field.name] = {}
                for key, value in [item for each in values for item in each.items()]:
                    former = merged[field.name].get(key)
                    both = isinstance(former, dict) and isinstance(value, dict)
                    merged[field.name][key] = {**former, **value} if both else value
            else:
                merged[field.name] = [line for each in values for line in each]
        return cls(**merged)


@dataclasses.dataclass(frozen=True)
class Result:
    """The scores of a model, and everything else that a page shows of it.

    Attributes:
        title: Title of the page.
        measurements: The scores. The headline is R@1 (cosine) of the embedding, next to a baseline
            and to the paper's, if there are any.
        table: The scores as text, for the terminal.
        details: Entries of the JSON file in addition to the recall and the table.
        whose: Which model or images the scores belong to, if not this model and unseen images.
        note: The same in sentences.
        conclusions: Sentences about the scores, from `experiments.evaluation.conclusions`. A page
            begins with them.
        summary: (label, text) pairs, such as sizes, backbone, and times.
        information: (label, text) pairs of the instruments of information.
        history: The objects of `metrics.jsonl`, in order; None without a training.
        best: The object of `history` whose model was kept.
        why_kept: Why this model was kept, such as "the last".
        images: The embedded images, for queries with their neighbors and for the map.
        figures: Title -> a figure, from `experiments.evaluation.figures`.
        reproduce: The command that repeats the run, and its versions.
        flags: The resolved flags as text.
        measured: Which images the curves are measured on.
    """

    title: str
    measurements: Sequence[Measurement]
    table: str = ""
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    whose: str = ""
    note: str = ""
    conclusions: Sequence[str] = ()
    summary: Sequence[tuple[str, str]] = ()
    information: Sequence[tuple[str, str]] = ()
    history: Sequence[Mapping[str, float]] | None = ()
    best: Mapping[str, float] = dataclasses.field(default_factory=dict)
    why_kept: str = ""
    images: EmbeddedSets | None = None
    figures: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    reproduce: str = ""
    flags: str = ""
    measured: str = "test images"

    def as_json(self) -> dict[str, Any]:
        """Return the content of the JSON file, which `measurements_of` reads."""
        own = [each for each in self.measurements if each.part != PAPER]
        rows = {name: as_json(named(row, lambda each: each.name))
                for name, row in _by_row(own).items()}  # fmt: skip
        recall = {
            name: as_json({str(each.k): each.value for each in row if each.score == RECALL.name})
            for name, row in _by_row(own).items()
        }
        return {"recall": recall, "rows": rows, **self.details, "table": self.table}


def _by_row(measurements: Iterable[Measurement]) -> dict[str, list[Measurement]]:
    rows: dict[str, list[Measurement]] = {}
    for each in measurements:
        if each.distance is not None:
            rows.setdefault(each.row, []).append(each)
    return rows


def scores_json(measurements: Iterable[Measurement]) -> dict[str, float | None]:
    """Return the scores of the test images by their keys, without those of baselines."""
    own = [each for each in measurements if each.side == "test" and not is_baseline(each.part)]
    return as_json(named(own, lambda each: each.key))


def baseline_json(measurements: Iterable[Measurement]) -> Rows:
    """Return the scores of a baseline by their rows, without NaN."""
    rows: Rows = {}
    for each in measurements:
        found = named([each], lambda each: each.name)
        finite = {name: value for name, value in found.items() if not math.isnan(value)}
        rows.setdefault(each.search, {}).update(finite)
    return rows


def baselines_json(measurements: Iterable[Measurement]) -> dict[str, Rows]:
    """Return the scores of each baseline by their rows, without NaN."""
    parts: dict[str, list[Measurement]] = {}
    for each in measurements:
        if is_baseline(each.part):
            parts.setdefault(each.part, []).append(each)
    return {part: baseline_json(scores) for part, scores in parts.items()}


def baselines_of(result: Mapping[str, Any]) -> dict[str, list[Measurement]]:
    """Return the scores of each baseline in a JSON file."""
    return {
        name: rows_of(rows, name) for name, rows in (result.get("baselines") or {}).items() if rows
    }


def measurements_of(result: Mapping[str, Any]) -> list[Measurement]:
    """Return the scores in a JSON file, without those of `baselines_of`. None is NaN."""
    found = rows_of(result.get("rows") or {})
    known = {each.place for each in found}
    scores = keyed(result.get("scores") or {})
    return [*found, *(each for each in scores if each.place not in known)]


def rows_of(
    rows: Mapping[str, Mapping[str, float | None]], part: str = EMBEDDING
) -> list[Measurement]:
    """Return the measurements of rows, which have the names `Measurement.row` or `search`.

    Args:
        rows: Name of a row -> {name of a score: value}.
        part: The part of rows without a part in their name.
    """
    found = []
    for name, row in rows.items():
        form = _ROW.fullmatch(name)
        own, search, distance = form.group("part", "search", "distance") if form else (name, "", "")
        side = next(side for side, each in SEARCHES.items() if each == (search or ""))
        found += [
            dataclasses.replace(each, part=own or part, side=side, distance=distance or None)
            for each in keyed(row)
        ]
    return found


def is_of_images(key: str) -> bool:
    """Return whether a value of a log is about the evaluated images, and not about the training."""
    return _OF_IMAGES.match(key) is not None


def keyed(scores: Mapping[str, float | None], part: str = EMBEDDING) -> list[Measurement]:
    """Return the measurements of scores, which have the names `Measurement.key`. None is NaN.

    Args:
        scores: Name -> value.
        part: The part of names without one.
    """
    # Names of registered scores may have slashes.
    known = "|".join(map(re.escape, sorted(SCORES, key=len, reverse=True)))
    form = re.compile(
        rf"(?P<score>{known}|.+?)(@(?P<k>\d{{1,9}}))?(/(?P<distance>{_DISTANCES}))?(/(?P<part>.+))?",
        re.DOTALL,
    )
    bounds = {key: (f"{key}_low", f"{key}_high") for key in scores}
    of_intervals = {name for names in bounds.values() for name in names}
    found = []
    for key, value in scores.items():
        place = form.fullmatch(key)
        if key in of_intervals or place is None:
            continue
        low, high = map(scores.get, bounds[key])
        found.append(
            Measurement(
                place["score"],
                math.nan if value is None else value,
                int(place["k"]) if place["k"] else None,
                place["distance"],
                place["part"] or part,
                low=low,
                high=high,
            )
        )
    return found
