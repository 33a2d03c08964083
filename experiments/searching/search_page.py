"""The neighbors of some images as a page."""

import functools
import io
import os
import pathlib
from collections.abc import Callable, Iterable

from markupsafe import Markup

from experiments.evaluation.pictures import SIDE
from experiments.options.visible import visible
from experiments.pages.page import Cell, Picture, Row, breaking, file_picture, write_page
from experiments.searching.answer import (
    ANYTHING,
    Answer,
    Conditions,
    SearchResult,
    answer_line,
    folder_of,
)
from experiments.searching.visual_search import VisualSearch
from pipelines.images.limits import MOST_PIXELS

# Classes of the frames in the style sheet, by whether a neighbor matches.
_FRAMES = {None: "neighbor", True: "match", False: "other"}


def write_neighbors(
    path: str | os.PathLike[str],
    search: VisualSearch,
    queries: Iterable[tuple[str, Answer]],
    conditions: Conditions = ANYTHING,
) -> None:
    """Write the page. An unreadable picture is left out, and its name is shown.

    Args:
        path: The file; its folder exists.
        search: The search.
        queries: (path of the image, its `Answer`).
        conditions: The conditions on the results.
    """
    only = [f"{name}={value}" for name, value in conditions.where]
    if conditions.min_similarity is not None:
        only.append(f"similarity at least {conditions.min_similarity:g}")
    intro = (
        f"Each query with its nearest neighbors of {search.num_items:,} images in "
        f"{search.images.place}, nearest first, with their {score_name(search.metric)}."
    )
    if only:
        intro += f" Only: {', '.join(only)}."
    if search.calibration is not None:
        intro += f" A match: {search.calibration.in_words()}."
    write_page(
        path,
        "Neighbors",
        template="neighbors.html",
        intro=intro,
        sections=[
            (file, answer_line(answer), _row(search, file, answer)) for file, answer in queries
        ],
    )


def score_name(metric: str) -> str:
    """Return the name of an index's score."""
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
            match = f"{result.match_in_words:<17}" if result.match_in_words else ""
            lines.append(f"{rank:>4}  {result.score:.4f}  {match}{visible(result.path)}{alike}")
        if line := answer_line(answer):
            lines.append(visible(f"      {line}"))
    if search.calibration is not None:
        lines.append(f"match: {search.calibration.in_words()}")
    lines.append(f"pictures: {page}" if page else "pictures: give --output=FILE.html")
    return "\n".join(lines)


def _row(search: VisualSearch, file: str, answer: Answer) -> Row:
    name = os.path.basename(file)
    query = Cell("query", _picture(pathlib.Path(file).read_bytes), name, "query", name)
    return Row([query, *(_cell(search, *ranked) for ranked in enumerate(answer.results, start=1))])


def _cell(search: VisualSearch, rank: int, result: SearchResult) -> Cell:
    note = Markup(f"{rank} · {result.score:.3f}")
    if result.alike:
        note += f" · and {len(result.alike)} alike"
    if result.class_name != folder_of(result.path):
        note += Markup("<br>") + breaking(result.class_name)
    if result.match is not None:
        note += f" · {result.match_in_words}"
    picture = _picture(functools.partial(search.read, result.item))
    return Cell(_FRAMES[result.match], picture, result.path, note, result.path)


def _picture(read: Callable[[], bytes]) -> Picture | None:
    try:
        encoded = read()
    except (OSError, ValueError):
        return None
    return file_picture(io.BytesIO(encoded), MOST_PIXELS, SIDE)
