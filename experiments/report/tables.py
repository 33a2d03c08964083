"""Tables: as aligned text for a terminal or a Markdown file, and as HTML for a page."""

from collections.abc import Sequence


def aligned(lines: Sequence[Sequence[str]]) -> list[list[str]]:
    """The cells of a table padded to their columns' widths: the first to the left, others right.

    No name in them steers the terminal: see `visible`.

    Args:
        lines: cells as text, as many in each line.
    """
    from pipelines.visible import visible  # NumPy comes with it, and no --help needs that

    lines = [list(map(visible, cells)) for cells in lines]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return [[cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])] for cells in lines]


def text_table(lines: Sequence[Sequence[str]]) -> str:
    """The table for a terminal: aligned columns, two spaces between them."""
    return "\n".join("  ".join(cells) for cells in aligned(lines))


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    """The table in Markdown, its first line the head; readable as it stands, too."""
    head, *rows = aligned(lines)
    rule = ["-" * len(head[0]), *("-" * (len(cell) - 1) + ":" for cell in head[1:])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def html_table(columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """The table as HTML.

    Args:
        columns: what stands over each column, as HTML; "" for a corner that is empty.
        rows: (what stands before the row, its cells), as HTML.
    """
    head = "".join(f'<th scope="col">{name}</th>' if name else "<th></th>" for name in columns)
    body = "\n".join(
        f'<tr><th scope="row">{name}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for name, cells in rows
    )
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
