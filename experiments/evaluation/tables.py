"""Tables of text: for a terminal, and as Markdown, CSV, and LaTeX files."""

import csv
import io
import pathlib
import re
from collections.abc import Sequence
from typing import Self

_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
          "±": r"$\pm$", "–": "--"}  # fmt: skip
#: The cell of a missing value.
MISSING = "–"
#: The formats of `write_table`, by the ending of the file.
ENDINGS = (".md", ".csv", ".tex")


class MeanText(str):
    """The text of a mean and of half of its interval, "85.4 ± 0.6", in one cell.

    Args:
        mean, half: Both numbers as text.
    """

    mean: str
    half: str

    def __new__(cls, mean: str, half: str) -> Self:
        """Return the text."""
        text = super().__new__(cls, f"{mean} ± {half}")
        text.mean, text.half = mean, half
        return text


def aligned(lines: Sequence[Sequence[str]]) -> list[list[str]]:
    """Pad the cells of a table to the widths of its columns.

    The first column is aligned to the left, the others to the right. Control characters in the
    cells are escaped.

    Args:
        lines: Cells as text, as many in each line.
    """
    from experiments.options.visible import visible  # imports NumPy, which --help does not need

    lines = [list(map(visible, cells)) for cells in lines]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return [[cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])] for cells in lines]


def text_table(lines: Sequence[Sequence[str]]) -> str:
    """Return a table for a terminal: aligned columns with two spaces between them."""
    return "\n".join("  ".join(cells) for cells in aligned(lines))


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown with aligned columns. The first line is the head."""
    head, *rows = aligned(lines)
    rule = ["-" * len(head[0]), *("-" * (len(cell) - 1) + ":" for cell in head[1:])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def csv_table(lines: Sequence[Sequence[str]]) -> str:
    """Return a table as CSV. A `MeanText` becomes two columns of numbers."""
    head, *rows = lines
    halved = [any(isinstance(cell, MeanText) for cell in column) for column in zip(*rows)]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for line in lines:
        cells: list[str] = []
        for cell, is_halved in zip(line, halved):
            mean, half = (cell.mean, cell.half) if isinstance(cell, MeanText) else (cell, "")
            cells.append("" if mean == MISSING else mean)
            if is_halved:
                cells.append(f"{cell}, ±" if line is head else half)
        writer.writerow(cells)
    return file.getvalue()


def latex_table(lines: Sequence[Sequence[str]]) -> str:
    """Return a table as a LaTeX `tabular` with the rules of the package booktabs."""
    head, *rows = (" & ".join(map(_latex, cells)) + r" \\" for cells in aligned(lines))
    columns = "l" + "r" * (len(lines[0]) - 1)
    parts = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *rows]
    return "\n".join([*parts, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _latex(text: str) -> str:
    return re.sub(r"[\\~^±–&%$#_{}]", lambda found: _LATEX.get(found[0], f"\\{found[0]}"), text)


def write_table(path: pathlib.Path, lines: Sequence[Sequence[str]], below: str = "") -> str:
    """Write a table as PATH.md, PATH.csv, and PATH.tex.

    Args:
        path: The files without their ending.
        lines: Cells as text, as many in each line. The first line is the head.
        below: Text below the table in PATH.md.

    Returns:
        The content of PATH.md.
    """
    from keras_dml._files.atomic import replacing  # imports Keras

    text = "\n\n".join(filter(None, [markdown_table(lines), below]))
    for ending, content in zip(ENDINGS, (f"{text}\n", csv_table(lines), latex_table(lines))):
        with replacing(path.with_name(f"{path.name}{ending}")) as temporary:
            temporary.write_text(content, encoding="utf-8", errors="surrogateescape")
    return text
