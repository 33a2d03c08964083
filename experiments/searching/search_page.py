"""Search results as an HTML page, and as text."""

import functools
import html
import io
import os
import pathlib
from collections.abc import Callable, Iterable

from experiments.report.page import write_page
from experiments.report.picture_cell import breaking, embedded_picture, picture_cell
from experiments.report.pictures import thumbnail
from experiments.searching.answer import ANYTHING, Answer, Conditions, answer_line, folder_of
from experiments.searching.visual_search import VisualSearch
from pipelines.visible import visible


def write_neighbors(
    path: str | os.PathLike[str],
    search: VisualSearch,
    queries: Iterable[tuple[str, Answer]],
    conditions: Conditions = ANYTHING,
) -> None:
    """Write queries and neighbors as one HTML file with pictures.

    Args:
        path: the file, in a folder that exists.
        search: the search.
        queries: image paths with their answers.
        conditions: the conditions of the search.
    """
    kind = score_name(search.metric)
    sections = [_section(search, file, answer) for file, answer in queries]
    intro = (
        f'<p class="soft">Each query with its nearest neighbors of {search.num_items:,} images in '
        f"{html.escape(visible(search.images.place))}, nearest first, with their {kind}."
        f"{_asked(conditions)}{_calibrated(search)}</p>"
    )
    write_page(path, "Neighbours", "\n".join([intro, *sections]))


def score_name(metric: str) -> str:
    """Return the name of a score on a page."""
    return "cosine similarity" if metric == "cosine" else "distance (l2)"


def answers_text(
    search: VisualSearch, answers: Iterable[tuple[str, Answer]], page: pathlib.Path | None
) -> str:
    """Format queries and answers for a terminal."""
    lines = [f"rank  {score_name(search.metric)}"]
    for name, answer in answers:
        lines.append(visible(name))
        for rank, result in enumerate(answer.results, start=1):
            alike = f"  (and {len(result.alike)} alike)" if result.alike else ""
            match = f"{result.match_in_words:<10}" if result.match_in_words else ""
            lines.append(f"{rank:>4}  {result.score:.4f}  {match}{visible(result.path)}{alike}")
        if line := answer_line(answer):
            lines.append(visible(f"      {line}"))
    if search.calibration is not None:
        lines.append(f"match: {search.calibration.in_words()}")
    lines.append(f"pictures: {page}" if page else "pictures: give --output=FILE.html")
    return "\n".join(lines)


def _asked(conditions: Conditions) -> str:
    words = [f"{name}={value}" for name, value in conditions.where]
    if conditions.min_similarity is not None:
        words.append(f"similarity at least {conditions.min_similarity:g}")
    return f" Only: {breaking(', '.join(words))}." if words else ""


def _calibrated(search: VisualSearch) -> str:
    if search.calibration is None:
        return ""
    return f" A match: {search.calibration.in_words()}."


def _section(search: VisualSearch, file: str, answer: Answer) -> str:
    name = os.path.basename(file)
    cells = [picture_cell("query", _picture(pathlib.Path(file).read_bytes, name), name, "query")]
    for rank, result in enumerate(answer.results, start=1):
        picture = _picture(functools.partial(search.read, result.item), result.path)
        note = f"{rank} · {result.score:.3f}"
        if result.alike:
            note += f" · and {len(result.alike)} alike"
        if result.class_name != folder_of(result.path):
            note += f"<br>{breaking(result.class_name)}"
        kind = {None: "neighbour", True: "match", False: "other"}[result.match]
        if result.match is not None:
            note += f" · {result.match_in_words}"
        cells.append(picture_cell(kind, picture, result.path, note))
    row = '<div class="row">\n' + "\n".join(cells) + "\n</div>"
    said = answer_line(answer)
    said = f"<p>{breaking(said)}</p>\n" if said else ""
    return f'<section class="card">\n<h2>{breaking(file)}</h2>\n{said}{row}\n</section>'


def _picture(read: Callable[[], bytes], name: str) -> str:
    try:
        picture, kind = thumbnail(io.BytesIO(read()))
    except (OSError, ValueError):
        return '<span class="soft">no picture</span>'
    return embedded_picture(picture, kind, name)
