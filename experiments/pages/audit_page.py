"""The page of an audit."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.evaluation.audited_images import AuditedImages
from experiments.evaluation.duplicates import NEAR, DuplicatePair
from experiments.evaluation.findings import Findings, Thresholds, count_names
from experiments.pages.page import Cell, Picture, Row, array_picture, file_picture, write_page

# Cells of a row, and the longest side of their pictures.
_CELLS, _SIDE = 6, 224
# The other classes of the table of confused classes have no pictures.
_CLASSES_WITH_PICTURES = 6


class Section(NamedTuple):
    """A kind of finding: rows of pictures, and a table for a page without pictures.

    Attributes:
        title, note: Texts above the rows.
        rows: Pictures.
        columns, lines: The table.
        both: Whether the page has the table in addition to the pictures.
    """

    title: str
    note: str
    rows: Sequence[Row]
    columns: Sequence[str]
    lines: Sequence[tuple[str, Sequence[str]]]
    both: bool = False


def write_audit_page(
    path: str | os.PathLike[str],
    title: str,
    images: AuditedImages,
    findings: Findings,
    thresholds: Thresholds,
    limits: Mapping[str, int | None],
    shown: int,
) -> None:
    """Write the page.

    Args:
        path: The file; its folder exists.
        title: Plain text.
        images: The audited images.
        findings: The findings.
        thresholds: Their thresholds.
        limits: How many of each of `Findings.counts` are allowed; None for any number.
        shown: How many of each kind the page shows, at most.
    """
    counts = findings.counts(images)
    page = _Page(images, findings, thresholds, shown)
    sections = [
        page.duplicates(across=True),
        page.duplicates(across=False),
        page.label_errors(),
        page.outliers(),
        page.confused(),
    ]
    numbers = []
    for name, text in count_names(images).items():
        limit = limits.get(name)
        allowed = "" if limit is None else f", {limit:,} allowed"
        is_over = limit is not None and counts[name] > limit
        numbers.append((f"{counts[name]:,}", f"{text}{allowed}", is_over))
    write_page(
        path,
        title,
        template="audit.html",
        numbers=numbers,
        summary=_summary(images, findings, thresholds),
        sections=[section for section in sections if section is not None],
        has_pictures=images.has_pictures,
    )


def _summary(
    images: AuditedImages, findings: Findings, thresholds: Thresholds
) -> list[tuple[str, str]]:
    lines = [
        (
            f"{each.name} images".lstrip().capitalize(),
            f"{len(each.labels):,} of {len(np.unique(each.labels)):,} classes",
        )
        for each in images.sets
    ]
    duplicates = f"similarity of the embeddings at least {thresholds.similarity:g}: no pictures"
    if images.has_pictures:
        duplicates = (
            f"correlation of the pictures at least {thresholds.correlation:g}, also if one is "
            "mirrored or cut"
        )
    lines += [
        ("Neighbors", f"{findings.neighbors.shape[1]} of each image, by cosine similarity"),
        ("Duplicates", duplicates),
        ("Labels", f"below {thresholds.label_ratio:g} of the usual share of votes in the class"),
        (
            "Outliers",
            f"above the upper quartile by {thresholds.outlier_score:g} times the distance of the "
            "quartiles",
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
        self, images: AuditedImages, findings: Findings, thresholds: Thresholds, shown: int
    ) -> None:
        self._images, self._findings, self._shown = images, findings, shown
        self._max_pixels = thresholds.max_pixels

    def duplicates(self, across: bool) -> Section | None:
        """Return the groups of duplicates in several sets, or in one set."""
        images, duplicates = self._images, self._findings.duplicates
        groups = [
            rows
            for rows in duplicates.larger_groups()
            if (len(np.unique(images.set_numbers(rows))) > 1) == across
        ]
        pair_of: dict[int, DuplicatePair] = {}
        for pair in duplicates.pairs:
            for row in (pair.first, pair.second):
                pair_of.setdefault(row, pair)
        rows_shown, pairs_shown, lines = [], list[Cell](), []
        for rows in groups[: self._shown]:
            first, *others = rows.tolist()
            cells = [self._cell("query", first)]
            for row in others[: _CELLS - 1]:
                same = images.labels[row] == images.labels[first]
                kind = "match" if same else "other"
                cells.append(self._cell(kind, row, _duplicate_note(pair_of[row])))
            if len(cells) == 2:  # several groups of two fit next to each other
                pairs_shown += cells
            else:
                rows_shown.append(Row(cells, f"{len(rows):,} images"))
            again = ", ".join(images.name(row) for row in others[: _CELLS - 1])
            lines.append((images.name(first), [again, _duplicate_note(pair_of[first])]))
        sets = " and ".join(each.name for each in images.sets)
        within = " within a set" if len(images.sets) > 1 else ""
        note = (
            "The same file, the same pixels, or nearly the same picture. The first image of a "
            "group has a plain frame. An image with another label has a dashed frame."
        )
        if across:
            note += " A test image that the model has trained on measures nothing."
        return self._section(
            f"Near-duplicates across {sets}" if across else f"Near-duplicates{within}",
            note,
            len(groups),
            [*rows_shown, *_rows_of(pairs_shown)],
            ["image", "the same again", "how"],
            lines,
        )

    def label_errors(self) -> Section | None:
        """Return the labels that are probably wrong, with the neighbors that suggest others."""
        images, found = self._images, self._findings
        rows, lines = [], []
        for row in found.label_errors[: self._shown].tolist():
            suggested = images.class_names[found.votes.suggested[row]]
            share = f"{100 * found.votes.suggested_confidence[row]:.0f} % of the votes"
            cells = [self._cell("query", row, "its label")]
            nearest = zip(found.neighbors[row].tolist(), found.similarities[row].tolist())
            for other, near in itertools.islice(nearest, _CELLS - 1):
                same = images.labels[other] == images.labels[row]
                cells.append(self._cell("match" if same else "other", other, f"{near:.3f}"))
            label = images.class_name(row)
            rows.append(Row(cells, f"{label} → {suggested}? {share}"))
            lines.append((images.name(row), [label, suggested, share]))
        note = (
            "An image and its nearest neighbors with their labels, whose votes suggest another "
            "label. A solid frame: the image's label."
        )
        columns = ["image", "label", "suggested", "share"]
        count = len(found.label_errors)
        return self._section("Labels probably wrong", note, count, rows, columns, lines)

    def outliers(self) -> Section | None:
        """Return the images that are unlike all others."""
        images, found = self._images, self._findings
        shown = [(row, f"{found.outlier_scores[row]:.2f}")
                 for row in found.outliers[: self._shown].tolist()]  # fmt: skip
        cells = [self._cell("neighbor", row, score) for row, score in shown]
        lines = [(images.name(row), [images.class_name(row), score]) for row, score in shown]
        note = (
            "Images far from all others. The score is the distance to the nearest images above the "
            "upper quartile of all images, in distances of the quartiles."
        )
        columns = ["image", "label", "score"]
        return self._section("Outliers", note, len(found.outliers), _rows_of(cells), columns, lines)

    def confused(self) -> Section | None:
        """Return the classes whose images are each other's neighbors."""
        images = self._images
        pairs = self._findings.confused[: self._shown]
        rows, lines = [], []
        for number, pair in enumerate(pairs):
            codes = [int(code) for code in (pair.first, pair.second)]  # type: ignore[call-overload]
            first, second = (images.class_names[code] for code in codes)
            share = f"{100 * pair.share:.1f} %"
            lines.append((first, [second, share]))
            if images.has_pictures and number < _CLASSES_WITH_PICTURES:
                cells = [
                    self._cell("query" if place % 2 == 0 else "other", row, note)
                    for place, (row, note) in enumerate(self._between(*codes))
                ]
                rows.append(Row(cells, f"{first} and {second}, {share}"))
        note = (
            "The share of the other class in the votes of all neighbors of the two classes' "
            "images, and the nearest pairs as pictures."
        )
        columns = ["class", "confused with", "share of votes"]
        if not pairs:
            return None
        return Section("Classes most confused", note, rows, columns, lines, both=True)

    def _between(self, first: int, second: int) -> list[tuple[int, str]]:
        """Return the nearest pairs of images of two classes, with their similarity."""
        labels, neighbors = self._images.labels, self._findings.neighbors
        rows = np.flatnonzero(labels == first)
        place, column = np.nonzero(labels[neighbors[rows]] == second)
        if len(place):
            ends = np.stack([rows[place], neighbors[rows[place], column]])
        else:  # only images of the second class have neighbors of the first
            rows = np.flatnonzero(labels == second)
            place, column = np.nonzero(labels[neighbors[rows]] == first)
            ends = np.stack([neighbors[rows[place], column], rows[place]])
        near = self._findings.similarities[rows[place], column]
        shown: list[tuple[int, str]] = []
        for best in np.argsort(-near, kind="stable").tolist():
            one, other = ends[:, best].tolist()
            if not {one, other} & {row for row, _ in shown} and len(shown) < _CELLS:
                shown += [(one, ""), (other, f"{near[best]:.3f}")]
        return shown

    def _section(
        self,
        title: str,
        note: str,
        found: int,
        rows: Sequence[Row],
        columns: Sequence[str],
        lines: Sequence[tuple[str, Sequence[str]]],
    ) -> Section | None:
        if not found:
            return None
        some = f" The first {len(lines):,} of {found:,}." if found > len(lines) else ""
        return Section(f"{title}: {found:,}", note + some, rows, columns, lines)

    def _cell(self, kind: str, row: int, note: str = "") -> Cell:
        images = self._images
        of_set = images.place(row)[0].name if len(images.sets) > 1 else ""
        name = images.class_name(row)
        text = " · ".join(filter(None, [of_set, note]))
        alt = f"{name}, {os.path.basename(images.name(row))}"
        return Cell(kind, self._picture(row), name, text, alt)

    def _picture(self, row: int) -> Picture | None:
        each, number = self._images.place(row)
        table = each.table
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
    if pair.kind != NEAR:
        return pair.kind
    return f"{pair.similarity if pair.correlation is None else pair.correlation:.3f}"
