"""The measurements as tables and lines of text."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from experiments.evaluation.measurement import Measurement
from experiments.evaluation.scores import RECALL, SCORES, Score, ScoredSet
from experiments.evaluation.tables import MISSING, text_table


def score_of(measurement: Measurement) -> Score:
    """Return the score of a measurement. Of a score that is not registered, its name is shown."""
    name = measurement.score
    return SCORES[name] if name in SCORES else Score(name=name, label=name)


def label_of(measurement: Measurement) -> str:
    """Return the label of a measurement, such as "MAP@R" or "R@5"."""
    label = score_of(measurement).label
    return label if measurement.k is None else f"{label}@{measurement.k}"


def text_of(measurement: Measurement) -> str:
    """Return a value as text, with its interval: "85.4 (80.1 to 89.2)"."""
    return f"{score_of(measurement).text(measurement.value)}{_interval(measurement)}"


def _interval(measurement: Measurement) -> str:
    text, low, high = score_of(measurement).text, measurement.low, measurement.high
    return "" if low is None or high is None else f" ({text(low)} to {text(high)})"


class ScoreTable(NamedTuple):
    """The measurements of a distance as a table.

    Attributes:
        columns: A measurement of each column.
        rows: Names and cells of the rows.
    """

    columns: list[Measurement]
    rows: list[tuple[str, list[str]]]


def score_table(measurements: Iterable[Measurement]) -> ScoreTable:
    """Return a table: scores at K by K, then the others in their order.

    A missing value is a dash.
    """
    rows: dict[str, dict[tuple[str, int | None], Measurement]] = {}
    for each in measurements:
        if each.distance is not None:
            rows.setdefault(each.row, {})[each.score, each.k] = each
    order = {name: place for place, name in enumerate(SCORES)}

    def place(key: tuple[str, int | None]) -> tuple[int, int]:
        score, k = key
        return (len(order), 0) if k is None else (order.get(score, len(order)), k)

    columns = {key: each for row in rows.values() for key, each in row.items()}
    heads = sorted(columns, key=place)
    return ScoreTable(
        [columns[key] for key in heads],
        [
            (name, [text_of(row[key]) if key in row else MISSING for key in heads])
            for name, row in rows.items()
        ],
    )


def score_text(measurements: Iterable[Measurement]) -> str:
    """Return the table in aligned columns, for a terminal. The head of a recall is only its K."""
    table = score_table(measurements)
    heads = [str(each.k) if score_of(each) is RECALL else label_of(each) for each in table.columns]
    lines = [[name, *cells] for name, cells in table.rows]
    return text_table([[f"{RECALL.label}@K, %", *heads], *lines])


def score_lines(measurements: Iterable[Measurement]) -> list[tuple[str, str]]:
    """Return (label, text) of the measurements that no column of the table shows."""
    found = []
    for each in measurements:
        score = SCORES.get(each.score)
        if score is not None and each.distance is None and not math.isnan(each.value):
            text = (score.line or score.format)(each.value)
            found += [(score.label, f"{text}{_interval(each)}")] if text else []
    return found


def certificate_lines(embeddings: ScoredSet) -> list[tuple[str, str]]:
    """Return (label, text) of the certificates of each row of the table."""
    lines = []
    for (part, side, distance), each in embeddings.certificates.items():
        texts = []
        for score, k, found in each:
            of = Measurement(score, found.exact, k, distance, part, side, found.low, found.high)
            by_scann = score_of(of).text(found.approximate)
            texts.append(f"{label_of(of)} {text_of(of)}, ScaNN on the same {by_scann}")
        queries = max(one.certificate.queries for one in each)
        row = Measurement("", 0, None, distance, part, side).row
        label = f"Exact on {queries:,} random queries, with 95 % interval ({row})"
        lines.append((label, "; ".join(texts)))
    return lines
