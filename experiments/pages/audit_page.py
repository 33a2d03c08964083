"""The page of an audit."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.evaluation.audited_images import AuditedImages
from experiments.evaluation.duplicates import NEAR, DuplicatePair
from experiments.evaluation.findings import (
    LABEL_RATIO,
    OUTLIER_SCORE,
    Findings,
    Thresholds,
    count_names,
)
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
    """A kind of finding.

    Attributes:
        title, note: Texts above the findings.
        rows: Pictures.
        table: Head and lines of the table that a page without pictures shows.
        both: Whether the page has the table in addition to the pictures.
    """

    title: str
    note: str
    rows: Sequence[Row]
    table: Sequence[Sequence[str]]
    both: bool = False


def write_audit_page(
    path: str | os.PathLike[str],
    title: str,
    images: AuditedImages,
    findings: Findings,
    lines: Mapping[str, Sequence[Mapping[str, Any]]],
    thresholds: Thresholds,
    limits: Mapping[str, int | None],
) -> None:
    """Write the page.

    Args:
        path: The file; its folder exists.
        title: Plain text.
        images: The audited images.
        findings: The findings.
        lines: The findings as lines, from `lines_of`.
        thresholds: Their thresholds.
        limits: How many of each of `Findings.counts` are allowed; None for any number.
    """
    counts = findings.counts(images)
    numbers = []
    for name, text in count_names(images).items():
        limit = limits.get(name)
        allowed = "" if limit is None else f", {limit:,} allowed"
        is_over = limit is not None and counts[name] > limit
        numbers.append((f"{counts[name]:,}", f"{text}{allowed}", is_over))
    page = _Page(images, findings, lines, thresholds.max_pixels)
    sections = [
        page.duplicates(across=True),
        page.duplicates(across=False),
        page.label_errors(),
        page.outliers(),
        page.confused(),
    ]
    write_page(
        path,
        title,
        template="audit.html",
        numbers=numbers,
        summary=_summary(images, findings, thresholds),
        sections=[section for section in sections if section is not None],
        has_pictures=bool(images.tables),
    )


def _summary(
    images: AuditedImages, findings: Findings, thresholds: Thresholds
) -> list[tuple[str, str]]:
    lines = [
        (
            f"{name} images".lstrip().capitalize(),
            f"{len(each.labels):,} of {len(np.unique(each.labels)):,} classes",
        )
        for name, each in images.sets.items()
    ]
    duplicates = f"similarity of the embeddings at least {thresholds.similarity:g}: no pictures"
    if images.tables:
        duplicates = (
            f"correlation of the pictures at least {thresholds.correlation:g}, also if one is "
            "mirrored or cut"
        )
    lines += [
        ("Neighbors", f"{findings.neighbors.shape[1]} of each image, by cosine similarity"),
        ("Duplicates", duplicates),
        ("Labels", f"below {LABEL_RATIO:g} of the usual share of votes in the class"),
        (
            "Outliers",
            f"above the upper quartile by {OUTLIER_SCORE:g} times the quartiles' distance",
        ),
    ]
    unreadable = findings.duplicates.unreadable
    if unreadable:
        row, reason = next(iter(unreadable.items()))
        first = f"the first {images.name(row)}: {reason}"
        lines.append(("Without a picture", f"{len(unreadable):,}, {first}"))
    return lines


class _Page:
    """The sections of the page."""

    def __init__(
        self,
        images: AuditedImages,
        findings: Findings,
        lines: Mapping[str, Sequence[Mapping[str, Any]]],
        max_pixels: int,
    ) -> None:
        self._images, self._findings, self._lines = images, findings, lines
        self._max_pixels = max_pixels

    def duplicates(self, across: bool) -> Section | None:
        """Return the groups of duplicates in several sets, or in one set."""
        images, found = self._images, self._findings.duplicates
        groups = [
            rows
            for rows in found.larger_groups()
            if (len(np.unique(images.set_numbers(rows))) > 1) == across
        ]
        note_of: dict[int, str] = {}
        for pair in found.pairs:
            for row in (pair.first, pair.second):
                note_of.setdefault(row, _duplicate_note(pair))
        rows_shown, pairs_shown = list[Row](), list[Cell]()
        for rows in groups[:_SHOWN]:
            first, *others = rows.tolist()
            cells = [self._cell("query", first)]
            cells += [self._neighbor(first, row, note_of[row]) for row in others[: _CELLS - 1]]
            if len(cells) == 2:  # several groups of two fit next to each other
                pairs_shown += cells
            else:
                rows_shown.append(Row(cells, f"{len(rows):,} images"))
        firsts = {int(found.groups[rows[0]]) for rows in groups[:_SHOWN]}
        lines = [line for line in self._lines["duplicates"] if line["group"] in firsts]
        title = "Near-duplicates"
        note = (
            "The same file, the same pixels, or nearly the same picture. The first image of a "
            "group has a plain frame. An image with another label has a dashed frame."
        )
        if across:
            title += f" across {' and '.join(images.sets)}"
            note += " A test image that the model has trained on measures nothing."
        elif len(images.sets) > 1:
            title += " within a set"
        return self._section(title, note, len(groups), [*rows_shown, *_rows_of(pairs_shown)], lines)

    def label_errors(self) -> Section | None:
        """Return the labels that are probably wrong, with the neighbors that suggest others."""
        images, found = self._images, self._findings
        rows = []
        for row in found.label_errors[:_SHOWN].tolist():
            suggested = images.class_names[found.votes.suggested[row]]
            share = f"{100 * found.votes.suggested_confidence[row]:.0f} % of the votes"
            nearest = zip(found.neighbors[row].tolist(), found.similarities[row].tolist())
            cells = [
                self._neighbor(row, other, f"{near:z.3f}")
                for other, near in itertools.islice(nearest, _CELLS - 1)
            ]
            head = f"{images.class_name(row)} → {suggested}? {share}"
            rows.append(Row([self._cell("query", row, "its label"), *cells], head))
        note = (
            "An image and its nearest neighbors with their labels, whose votes suggest another "
            "label. A solid frame: the image's label."
        )
        count = len(found.label_errors)
        return self._section(
            "Labels probably wrong", note, count, rows, self._lines["label_errors"][:_SHOWN]
        )

    def outliers(self) -> Section | None:
        """Return the images that are unlike all others."""
        found = self._findings
        cells = [self._cell("neighbor", row, f"{found.outlier_scores[row]:.2f}")
                 for row in found.outliers[: _SHOWN].tolist()]  # fmt: skip
        note = (
            "Images far from all others. The score is the distance to the nearest images above the "
            "upper quartile of all images, in distances of the quartiles."
        )
        lines = self._lines["outliers"][:_SHOWN]
        return self._section("Outliers", note, len(found.outliers), _rows_of(cells), lines)

    def confused(self) -> Section | None:
        """Return the classes whose images are each other's neighbors."""
        images, pairs = self._images, self._findings.confused[:_SHOWN]
        rows = []
        for pair in pairs[:_CLASSES_WITH_PICTURES] if images.tables else ():
            codes = [int(code) for code in (pair.first, pair.second)]  # type: ignore[call-overload]
            first, second = (images.class_names[code] for code in codes)
            cells = [
                self._cell("query" if place % 2 == 0 else "other", row, note)
                for place, (row, note) in enumerate(self._between(*codes))
            ]
            rows.append(Row(cells, f"{first} and {second}, {100 * pair.share:.1f} %"))
        note = (
            "The score is the share of the other class in the votes of all neighbors of the two "
            "classes' images. The pictures are the nearest pairs."
        )
        lines = self._lines["confused"][:_SHOWN]
        section = self._section("Classes most confused", note, len(pairs), rows, lines)
        return section and section._replace(title="Classes most confused", both=True)

    def _between(self, first: int, second: int) -> list[tuple[int, str]]:
        """Return the nearest pairs of images of two classes, with their similarity."""
        labels, neighbors = self._images.labels, self._findings.neighbors
        found = []
        for of_row, of_neighbor in ((first, second), (second, first)):
            rows = np.flatnonzero(labels == of_row)
            place, column = np.nonzero(labels[neighbors[rows]] == of_neighbor)
            near = self._findings.similarities[rows[place], column]
            ends = zip(rows[place].tolist(), neighbors[rows[place], column].tolist())
            found += [(similarity, *(pair if of_row == first else pair[::-1]))
                      for similarity, pair in zip(near.tolist(), ends)]  # fmt: skip
        shown: list[tuple[int, str]] = []
        for similarity, one, other in sorted(found, key=lambda each: -each[0]):
            if not {one, other} & {row for row, _ in shown} and len(shown) < _CELLS:
                shown += [(one, ""), (other, f"{similarity:z.3f}")]
        return shown

    def _section(
        self,
        title: str,
        note: str,
        found: int,
        rows: Sequence[Row],
        lines: Sequence[Mapping[str, Any]],
    ) -> Section | None:
        if not found:
            return None
        if found > _SHOWN:
            note += f" The first {_SHOWN:,} of {found:,}."
        heads = {head: column for head, column in _COLUMNS.items() if column in lines[0]}
        table = [list(heads), *([line[column] for column in heads.values()] for line in lines)]
        return Section(f"{title}: {found:,}", note, rows, table)

    def _neighbor(self, first: int, row: int, note: str) -> Cell:
        labels = self._images.labels
        return self._cell("match" if labels[row] == labels[first] else "other", row, note)

    def _cell(self, kind: str, row: int, note: str = "") -> Cell:
        images = self._images
        name = images.class_name(row)
        text = " · ".join(filter(None, [images.place(row)[0], note]))
        alt = f"{name}, {os.path.basename(images.name(row))}"
        return Cell(kind, self._picture(row), name, text, alt)

    def _picture(self, row: int) -> Picture | None:
        _, table, number = self._images.place(row)
        if table is None:
            return None
        if table.arrays is not None:
            array = table.arrays[number]
            return array_picture(np.broadcast_to(array, (*array.shape[:2], 3)))
        if table.paths is not None:
            return file_picture(str(table.paths[number]), self._max_pixels, _SIDE)
        encoded = table.encoded[number]  # type: ignore[index]
        return file_picture(io.BytesIO(encoded), self._max_pixels, _SIDE)


def _rows_of(cells: Sequence[Cell]) -> list[Row]:
    return [Row(cells[start : start + _CELLS]) for start in range(0, len(cells), _CELLS)]


def _duplicate_note(pair: DuplicatePair) -> str:
    return pair.kind if pair.kind != NEAR else f"{pair.score:z.3f}"
