"""The page of an audit: what was found, with its pictures."""

from __future__ import annotations

import html
import io
import os
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.auditing.audited_images import AuditedImages
from experiments.auditing.duplicates import DuplicatePair
from experiments.auditing.findings import Findings, Thresholds
from experiments.report.page import write_page
from experiments.report.picture_cell import embedded_picture, picture_cell
from experiments.report.pictures import thumbnail
from experiments.report.retrieval_grid import array_picture
from experiments.report.tables import html_table
from pipelines.visible import visible

# Cells of a row on the page, and the longer side of their pictures.
_CELLS, _SIDE = 6, 224
# Of the most confused classes so many are shown with pictures, all others by name.
_CLASSES_WITH_PICTURES = 6


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
        path: where to; the folder exists.
        title: plain text.
        images, findings: what was found in what.
        thresholds: with which.
        limits: how many of each count (`Findings.counts`) are allowed; None: any number.
        shown: how many of each kind the page shows, at most.
    """
    page = _Page(images, findings, thresholds, shown)
    body = [
        _headline(findings.counts(images), limits),
        _summary(images, findings, thresholds),
        page.duplicates(across=True),
        page.duplicates(across=False),
        page.label_errors(),
        page.outliers(),
        page.confused(),
    ]
    write_page(path, title, "\n".join(filter(None, body)))


COUNTED = {
    "leaks": "images that training has seen",
    "duplicates": "near-duplicates to spare",
    "label_errors": "labels probably wrong",
    "outliers": "outliers",
}
"""What each count of `Findings.counts` is called."""


def count_names(images: AuditedImages) -> dict[str, str]:
    """What each count is called, of sets like these; without that which cannot be."""
    names = dict(COUNTED)
    if len(images.sets) == 1:
        del names["leaks"]
    elif images.sets[0].name != "train":
        names["leaks"] = "queries that the gallery holds"
    return names


def _headline(counts: Mapping[str, int], limits: Mapping[str, int | None]) -> str:
    cells = []
    for name, what in COUNTED.items():
        limit = limits.get(name)
        allowed = "" if limit is None else f", {limit:,} allowed"
        over = ' class="main"' if limit is not None and counts[name] > limit else ""
        cells.append(
            f'<div{over}><b>{counts[name]:,}</b><span class="soft">{what}{allowed}</span></div>'
        )
    return f'<div class="headline">{"".join(cells)}</div>'


def _summary(images: AuditedImages, findings: Findings, thresholds: Thresholds) -> str:
    sets = [
        (
            f"{each.name} images".lstrip().capitalize(),
            f"{len(each.labels):,} of {len(np.unique(each.labels)):,} classes",
        )
        for each in images.sets
    ]
    lines = [
        *sets,
        ("Neighbours", f"{findings.neighbors.shape[1]} of each image, by cosine similarity"),
        (
            "Duplicates",
            f"correlation of the pictures from {thresholds.correlation:g} on, mirrored and cut "
            "ones too" if images.has_pictures else
            f"similarity of the embeddings from {thresholds.similarity:g} on: no pictures at hand",
        ),
        (
            "Labels",
            f"below {thresholds.label_ratio:g} of the votes that an image of the class usually has",
        ),
        (
            "Outliers",
            f"beyond the upper quartile by {thresholds.outlier_score:g} times the distance of the "
            "quartiles",
        ),
    ]  # fmt: skip
    if findings.duplicates.unreadable:
        row, reason = next(iter(findings.duplicates.unreadable.items()))
        count = len(findings.duplicates.unreadable)
        lines.append(("Without a picture", f"{count:,}, the first {images.name(row)}: {reason}"))
    rows = "\n".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in lines
    )
    return f'<section class="card">\n<h2>Audit</h2>\n<dl>\n{rows}\n</dl>\n</section>'


class _Page:
    """The sections."""

    def __init__(
        self, images: AuditedImages, findings: Findings, thresholds: Thresholds, shown: int
    ) -> None:
        self._images, self._findings, self._shown = images, findings, shown
        self._max_pixels = thresholds.max_pixels

    def duplicates(self, across: bool) -> str:
        """The groups of duplicates that span sets, or those within one."""
        images, duplicates = self._images, self._findings.duplicates
        groups = [
            rows
            for rows in duplicates.larger_groups()
            if (len(np.unique(images.set_numbers(rows))) > 1) == across
        ]
        if not groups:
            return ""
        pair_of: dict[int, DuplicatePair] = {}
        for pair in duplicates.pairs:
            for row in (pair.first, pair.second):
                pair_of.setdefault(row, pair)
        lines, table, two = [], [], list[str]()
        for rows in groups[: self._shown]:
            pair = pair_of[int(rows[0])]
            cells = [
                self._duplicate(row, int(rows[0]), pair_of[row]) for row in rows[:_CELLS].tolist()
            ]
            if len(cells) == 2:  # several groups of two fit beside each other
                two += cells
            else:
                lines.append(_row(cells, f"{len(rows):,} images"))
            others = ", ".join(self._name(row) for row in rows.tolist()[1:_CELLS])
            table.append((self._name(int(rows[0])), [others, _duplicate_note(pair)]))
        lines += [_row(two[start : start + _CELLS]) for start in range(0, len(two), _CELLS)]
        sets = " and ".join(each.name for each in images.sets)
        within = " within a set" if len(images.sets) > 1 else ""
        title = f"Near-duplicates across {sets}" if across else f"Near-duplicates{within}"
        note = (
            "The same picture again, as a file, pixel for pixel, or nearly; the first of each "
            "group has a plain frame, those with another label than it a dashed one."
        )
        if across:
            note += " What training has seen measures nothing in the test set."
        columns = ["image", "the same again", "how"]
        return self._section(title, note, len(groups), lines, columns, table)

    def _duplicate(self, row: int, first: int, pair: DuplicatePair) -> str:
        if row == first:
            return self._cell("query", row, "")
        same = self._images.labels[row] == self._images.labels[first]
        return self._cell("match" if same else "other", row, _duplicate_note(pair))

    def label_errors(self) -> str:
        """The labels that are probably wrong, with the neighbors that say so."""
        images, votes = self._images, self._findings.votes
        lines, table = [], []
        for row in self._findings.label_errors[: self._shown].tolist():
            suggested = images.class_names[votes.suggested[row]]
            share = f"{100 * votes.suggested_confidence[row]:.0f} % of the votes"
            cells = [self._cell("query", row, "its label")]
            for other, near in self._neighbors(row):
                same = images.labels[other] == images.labels[row]
                cells.append(self._cell("match" if same else "other", other, f"{near:.3f}"))
            label = html.escape(visible(images.class_name(row)))
            lines.append(_row(cells, f"{label} → {html.escape(visible(suggested))}? {share}"))
            table.append((self._name(row), [label, html.escape(visible(suggested)), share]))
        note = (
            "An image, then its nearest neighbours with their labels: full frame where it is the "
            "image's own. Their votes suggest another label."
        )
        found, columns = len(self._findings.label_errors), ["image", "label", "suggested", "share"]
        return self._section("Labels probably wrong", note, found, lines, columns, table)

    def outliers(self) -> str:
        """What is unlike everything else."""
        scores, rows = self._findings.outlier_scores, self._findings.outliers[: self._shown]
        cells = [self._cell("neighbour", row, f"{scores[row]:.2f}") for row in rows.tolist()]
        lines = [_row(cells[i : i + _CELLS]) for i in range(0, len(cells), _CELLS)]
        table = [
            (
                self._name(row),
                [html.escape(visible(self._images.class_name(row))), f"{scores[row]:.2f}"],
            )
            for row in rows.tolist()
        ]
        note = (
            "Images far from all others: how far from their nearest beyond the upper quartile of "
            "all images, in distances of the quartiles."
        )
        found, columns = len(self._findings.outliers), ["image", "label", "score"]
        return self._section("Outliers", note, found, lines, columns, table)

    def confused(self) -> str:
        """The classes whose images are each other's neighbors."""
        images = self._images
        pairs = self._findings.confused[: self._shown]
        if not pairs:
            return ""
        lines, table = [], []
        for number, pair in enumerate(pairs):
            codes = [int(code) for code in (pair.first, pair.second)]  # type: ignore[call-overload]
            names = [html.escape(visible(images.class_names[code])) for code in codes]
            table.append((names[0], [names[1], f"{100 * pair.share:.1f} %"]))
            if images.has_pictures and number < _CLASSES_WITH_PICTURES:
                cells = [
                    self._cell("query" if place % 2 == 0 else "other", row, note)
                    for place, (row, note) in enumerate(self._between(codes[0], codes[1]))
                ]
                lines.append(_row(cells, f"{names[0]} and {names[1]}, {100 * pair.share:.1f} %"))
        listed = html_table(["class", "confused with", "share of votes"], table)
        rows = _list(lines) if lines else ""
        return (
            '<section class="card">\n<h2>Classes most confused</h2>\n<p class="soft">Of the votes '
            "of all neighbours of the two classes' images, the share for the other class; nearest "
            f'pairs as pictures.</p>\n<div class="scroll">{listed}</div>\n{rows}\n</section>'
        )

    def _between(self, first: int, second: int) -> list[tuple[int, str]]:
        """The nearest pairs of images of two classes, with their similarity."""
        labels, neighbors = self._images.labels, self._findings.neighbors
        rows = np.flatnonzero(labels == first)
        place, column = np.nonzero(labels[neighbors[rows]] == second)
        if len(place):
            ends = np.stack([rows[place], neighbors[rows[place], column]])
        else:  # it is the second class's images that have neighbors of the first
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

    def _neighbors(self, row: int) -> list[tuple[int, float]]:
        count = _CELLS - 1
        found = self._findings
        return list(
            zip(found.neighbors[row, :count].tolist(), found.similarities[row, :count].tolist())
        )

    def _section(
        self,
        title: str,
        note: str,
        found: int,
        lines: Sequence[str],
        columns: Sequence[str],
        table: Sequence[tuple[str, Sequence[str]]],
    ) -> str:
        if not found:
            return ""
        some = f" The first {len(table):,} of {found:,}." if found > len(table) else ""
        if self._images.has_pictures:
            content = _list(lines)
        else:
            content = f'<div class="scroll">{html_table(columns, table)}</div>'
        return (
            f'<section class="card">\n<h2>{html.escape(title)}: {found:,}</h2>\n'
            f'<p class="soft">{note}{some}</p>\n{content}\n</section>'
        )

    def _cell(self, kind: str, row: int, note: str) -> str:
        images = self._images
        of_set = images.place(row)[0].name
        told = " · ".join(filter(None, [of_set if len(images.sets) > 1 else "", note]))
        name = images.class_name(row)
        picture = self._picture(row, f"{name}, {os.path.basename(images.name(row))}")
        return picture_cell(kind, picture, name, told)

    def _picture(self, row: int, alt: str) -> str:
        each, number = self._images.place(row)
        nothing = '<span class="soft">no picture</span>'
        if each.table is None:
            return nothing
        if each.table.arrays is not None:
            array = each.table.arrays[number]
            return array_picture(np.broadcast_to(array, (*array.shape[:2], 3)), alt)
        if each.table.paths is not None:
            source: str | io.BytesIO = str(each.table.paths[number])
        else:
            source = io.BytesIO(each.table.encoded[number])  # type: ignore[index]
        try:
            encoded, kind = thumbnail(source, self._max_pixels, _SIDE)
        except (OSError, ValueError):
            return nothing
        return embedded_picture(encoded, kind, alt)

    def _name(self, row: int) -> str:
        return html.escape(visible(self._images.name(row)))


def _row(cells: Sequence[str], head: str = "") -> str:
    title = [f'<p class="soft">{head}</p>'] if head else []
    inside = "\n".join([*title, *cells])
    return f'<li class="row">\n{inside}\n</li>'


def _list(lines: Sequence[str]) -> str:
    inside = "\n".join(lines)
    return f'<ol class="rows">\n{inside}\n</ol>'


def _duplicate_note(pair: DuplicatePair) -> str:
    if pair.kind != "near-duplicate":
        return pair.kind
    return f"{pair.similarity if pair.correlation is None else pair.correlation:.3f}"
