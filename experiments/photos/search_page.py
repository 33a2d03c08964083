"""The neighbors of some images as one HTML file that holds its pictures."""

import html
import os
from collections.abc import Iterable

from experiments.photos.answer import Answer, classes_line
from experiments.photos.visual_search import VisualSearch
from experiments.report.page import write_page
from experiments.report.picture_cell import breaking, embedded_picture, picture_cell
from experiments.report.pictures import thumbnail


def write_neighbors(
    path: str | os.PathLike[str],
    search: VisualSearch,
    queries: Iterable[tuple[str, Answer]],
) -> None:
    """Write the page; a picture that cannot be read is left out, its name is there.

    Args:
        path: where to; the folder exists.
        search: `VisualSearch`.
        queries: (path of the image, its `Answer`).
    """
    kind = score_name(search.metric)
    sections = [_section(search, file, answer) for file, answer in queries]
    intro = (
        f'<p class="soft">Each query with its nearest neighbours of {search.num_items:,} images in '
        f"{html.escape(str(search.images))}, nearest first, with their {kind}.</p>"
    )
    write_page(path, "Neighbours", "\n".join([intro, *sections]))


def score_name(metric: str) -> str:
    """What a score of the index is called on a page."""
    return "cosine similarity" if metric == "cosine" else "distance (l2)"


def _section(search: VisualSearch, file: str, answer: Answer) -> str:
    name = os.path.basename(file)
    cells = [picture_cell("query", _picture(file, name), name, "query")]
    for rank, result in enumerate(answer.results, start=1):
        picture = _picture(search.file(result.item), result.path)
        note = f"{rank} · {result.score:.3f}"
        cells.append(picture_cell("neighbour", picture, result.path, note))
    row = '<div class="row">\n' + "\n".join(cells) + "\n</div>"
    return f'<section class="card">\n<h2>{breaking(file)}</h2>\n{_classes(answer)}{row}\n</section>'


def _classes(answer: Answer) -> str:
    line = classes_line(answer)
    return f"<p>{breaking(line)}</p>\n" if line else ""


def _picture(file: str | os.PathLike[str], name: str) -> str:
    try:
        picture, kind = thumbnail(file)
    except (OSError, ValueError):
        return '<span class="soft">no picture</span>'
    return embedded_picture(picture, kind, name)
