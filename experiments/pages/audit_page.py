"""The page of an audit."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.evaluation.audit import LABEL_RATIO, OUTLIER_SCORE, Audit, Count
from experiments.pages.page import Cell, Picture, Row, array_picture, file_picture, write_page

# Findings of each kind on the page.
_SHOWN = 20
# Cells of a row, and the longest side of their pictures.
_CELLS, _SIDE = 6, 224
# The other classes of the table of confused classes have no pictures.
_CLASSES_WITH_PICTURES = 6
# Columns of a table of findings: its head -> the column of `findings.csv`.
_COLUMNS = {"image": "image", "class": "class", "suggested": "suggested_class",
            "other image": "other_image", "other class": "other_class",
            "score": "score"}  # fmt: skip


class Section(NamedTuple):
    """The findings of a kind. The template has its title and note.

    Attributes:
        found: Number of findings. The page has no section without findings.
        rows: Pictures.
        lines: Lines of `findings.csv`, for the table that a page without pictures shows.
    """

    found: int
    rows: Sequence[Row]
    lines: Sequence[Mapping[str, Any]]

    @property
    def table(self) -> list[list[str]]:
        """The head and the lines of the table."""
        heads = {head: column for head, column in _COLUMNS.items() if column in self.lines[0]}
        return [list(heads), *([line[name] for name in heads.values()] for line in self.lines)]


def write_audit_page(
    path: str | os.PathLike[str],
    title: str,
    findings: Audit,
    lines: Mapping[str, Sequence[Mapping[str, Any]]],
    counts: Sequence[Count],
) -> None:
    """Write the page.

    Args:
        path: The file; its folder exists.
        title: Plain text.
        findings: The findings.
        lines: The findings as lines, from `lines_of`.
        counts: Their numbers and limits, from `Audit.counts`.
    """
    images = findings.images
    first_lines = {kind: found[:_SHOWN] for kind, found in lines.items()}
    write_page(
        path,
        title,
        template="audit.html",
        counts=counts,
        sets={name: (len(each.labels), len(np.unique(each.labels)))
              for name, each in images.sets.items()},
        findings=findings,
        label_ratio=LABEL_RATIO,
        outlier_score=OUTLIER_SCORE,
        unreadable=[(images.name(row), reason)
                    for row, reason in findings.duplicates.unreadable.items()],
        across=_duplicates(findings, lines["duplicates"], across=True),
        within=_duplicates(findings, lines["duplicates"], across=False),
        label_errors=_label_errors(findings, first_lines["label_errors"]),
        outliers=_outliers(findings, first_lines["outliers"]),
        confused=_confused(findings, first_lines["confused"]),
        most=_SHOWN,
        has_pictures=bool(images.tables),
    )  # fmt: skip


def _duplicates(findings: Audit, lines: Sequence[Mapping[str, Any]], across: bool) -> Section:
    """Return the groups of duplicates in several sets, or in one set."""
    images, found = findings.images, findings.duplicates
    groups = [
        rows
        for rows in found.larger_groups()
        if (len(np.unique(images.set_numbers(rows))) > 1) == across
    ]
    note_of: dict[int, str] = {}
    for pair, score in zip(found.pairs.tolist(), found.scores):
        for row in pair:
            note_of.setdefault(row, f"{score:z.3f}")
    rows_shown = []
    for rows in groups[:_SHOWN]:
        first, *others = rows.tolist()
        cells = [_cell(findings, "query", first)]
        cells += [_neighbor(findings, first, row, note_of[row]) for row in others[: _CELLS - 1]]
        rows_shown.append(Row(cells, f"{len(rows):,} images"))
    firsts = {int(found.groups[rows[0]]) for rows in groups[:_SHOWN]}
    return Section(len(groups), rows_shown, [line for line in lines if line["group"] in firsts])


def _label_errors(findings: Audit, lines: Sequence[Mapping[str, Any]]) -> Section:
    """Return the labels that are probably wrong, with the neighbors that suggest others."""
    images, votes = findings.images, findings.votes
    rows = []
    for row in findings.label_errors[:_SHOWN].tolist():
        suggested = images.class_names[votes.suggested[row]]
        share = f"{100 * votes.suggested_confidence[row]:.0f} % of the votes"
        nearest = zip(findings.neighbors[row].tolist(), findings.similarities[row].tolist())
        cells = [_cell(findings, "query", row, "its label")]
        cells += [_neighbor(findings, row, other, f"{near:z.3f}") for other, near in nearest]
        rows.append(Row(cells[:_CELLS], f"{images.class_name(row)} → {suggested}? {share}"))
    return Section(len(findings.label_errors), rows, lines)


def _outliers(findings: Audit, lines: Sequence[Mapping[str, Any]]) -> Section:
    """Return the images that are unlike all others."""
    cells = [_cell(findings, "neighbor", row, f"{findings.outlier_scores[row]:.2f}")
             for row in findings.outliers[:_SHOWN].tolist()]  # fmt: skip
    rows = [Row(cells[start : start + _CELLS]) for start in range(0, len(cells), _CELLS)]
    return Section(len(findings.outliers), rows, lines)


def _confused(findings: Audit, lines: Sequence[Mapping[str, Any]]) -> Section:
    """Return the classes whose images are each other's neighbors."""
    names = findings.images.class_names
    rows = []
    for first, second, share in findings.confused[:_CLASSES_WITH_PICTURES]:
        classes = int(first), int(second)  # type: ignore[call-overload]
        cells = []
        for one, other, similarity in _between(findings, *classes):
            cells.append(_cell(findings, "query", one))
            cells.append(_cell(findings, "other", other, f"{similarity:z.3f}"))
        head = f"{names[classes[0]]} and {names[classes[1]]}, {100 * share:.1f} %"
        rows.append(Row(cells, head))
    return Section(len(lines), rows, lines)


def _between(findings: Audit, first: int, second: int) -> list[tuple[int, int, float]]:
    """Return the nearest pairs of images of two classes, with their similarity."""
    labels, neighbors = findings.images.labels, findings.neighbors
    rows = np.flatnonzero(np.isin(labels, (first, second)))
    other_class = first + second - labels[rows]
    place, column = np.nonzero(labels[neighbors[rows]] == other_class[:, None])
    similarities = findings.similarities[rows[place], column]
    pairs = np.stack([rows[place], neighbors[rows[place], column]], axis=1)
    pairs[labels[pairs[:, 0]] == second] = pairs[labels[pairs[:, 0]] == second, ::-1]
    shown: list[tuple[int, int, float]] = []
    free = np.ones(len(labels), bool)
    for number in np.argsort(-similarities, kind="stable"):
        if free[pairs[number]].all():
            free[pairs[number]] = False
            one, other = pairs[number].tolist()
            shown.append((one, other, float(similarities[number])))
    return shown[: _CELLS // 2]


def _neighbor(findings: Audit, first: int, row: int, note: str) -> Cell:
    labels = findings.images.labels
    return _cell(findings, "match" if labels[row] == labels[first] else "other", row, note)


def _cell(findings: Audit, kind: str, row: int, note: str = "") -> Cell:
    images = findings.images
    name = images.class_name(row)
    text = " · ".join(filter(None, [images.place(row)[0], note]))
    alt = f"{name}, {os.path.basename(images.name(row))}"
    return Cell(kind, _picture(findings, row), name, text, alt)


def _picture(findings: Audit, row: int) -> Picture | None:
    _, table, number = findings.images.place(row)
    max_pixels = findings.options.max_pixels
    if table is None:
        return None
    if table.arrays is not None:
        array = table.arrays[number]
        return array_picture(np.broadcast_to(array, (*array.shape[:2], 3)))
    if table.paths is not None:
        return file_picture(str(table.paths[number]), max_pixels, _SIDE)
    encoded = table.encoded[number]  # type: ignore[index]
    return file_picture(io.BytesIO(encoded), max_pixels, _SIDE)
