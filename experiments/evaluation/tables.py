"""Tables as aligned text, for a terminal or a Markdown file."""

from collections.abc import Sequence


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
