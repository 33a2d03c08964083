"""The neighbours of some images as one HTML file that holds its pictures."""

import base64
import html
import os
import re

from experiments.report.page import write_page
from experiments.report.pictures import thumbnail


def write_neighbours(path, search, queries):
    """Write the page; a picture that cannot be read is left out, its name is there.

    Args:
        path: where to; the folder exists.
        search: `VisualSearch`.
        queries: list of (path of the image, list of `Found`).
    """
    kind = score_name(search.metric)
    sections = [_section(search, file, found) for file, found in queries]
    intro = (
        f'<p class="soft">Each query with its nearest neighbours of {search.num_items:,} images in '
        f"{html.escape(str(search.images))}, nearest first, with their {kind}.</p>"
    )
    write_page(path, "Neighbours", "\n".join([intro, *sections]))


def score_name(metric):
    """What a score of the index is called on a page."""
    return "cosine similarity" if metric == "cosine" else "distance (l2)"


def _section(search, file, found):
    cells = [_cell("query", file, os.path.basename(file), "query")]
    for rank, one in enumerate(found, start=1):
        note = f"{rank} · {one.score:.3f}"
        cells.append(_cell("neighbour", search.file(one.item), one.path, note))
    row = '<div class="row">\n' + "\n".join(cells) + "\n</div>"
    return (
        f'<section class="card">\n<h2>{_breaking(html.escape(str(file)))}</h2>\n{row}\n</section>'
    )


def _cell(kind, file, name, note):
    name = html.escape(name)
    return (
        f'<figure class="{kind}"><span class="frame">{_picture(file, name)}</span><figcaption>'
        f'<span class="name" title="{name}">{_breaking(name)}</span>{note}</figcaption></figure>'
    )


def _breaking(path):
    """HTML of a path that may break into lines."""
    return re.sub("([_/])", r"\1<wbr>", path)


def _picture(file, name):
    try:
        picture, kind = thumbnail(file)
    except (OSError, ValueError):
        return '<span class="soft">no picture</span>'
    data = base64.b64encode(picture).decode()
    return f'<img src="data:image/{kind};base64,{data}" alt="{name}">'
