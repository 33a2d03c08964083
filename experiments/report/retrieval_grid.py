"""Queries with their nearest neighbours, as an HTML grid that holds its own pictures."""

import html
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from experiments.report.picture_cell import embedded_picture, encoded_picture, picture_cell
from keras_dml._common.errors import ArgumentError

# Pictures are shown at most this wide and high, and stored at twice that for dense screens.
_SHOWN = 160
EACH_ROW = (
    "Each row: a query, then its nearest neighbours with their cosine similarity. ✓ and a full "
    "frame: the query's class; ✗ and a dashed frame: another one."
)


class Neighbor(NamedTuple):
    """One retrieved image: uint8 [h, w, 3], its class, its similarity, whether it matches."""

    image: np.ndarray
    class_name: str
    similarity: float
    match: bool


class RetrievalRow(NamedTuple):
    """A query image, uint8 [h, w, 3], its class, its `Neighbor`s, nearest first; a word on it."""

    query: np.ndarray
    class_name: str
    neighbors: Sequence[Neighbor]
    note: str = "query"


def choose_queries(labels: npt.ArrayLike, num: int = 10, seed: int = 0) -> np.ndarray:
    """Picks test images to show as queries, spread over the classes.

    The classes, in order, are cut into `num` equal stretches, and each gives one image of one of
    its classes. With fewer classes than `num`, the classes come round again with other images.
    Classes of one image are left out if there are others: such a query can have no match.

    Args:
        labels: integers [n], the class of each image.
        num: how many rows to pick; fewer come back if there are not as many images to show.
        seed: integer; the choice is a pure function of the three arguments.

    Returns:
        int64 [at most num], distinct row numbers.

    Raises:
        ValueError: if `num` is below 1, or `labels` is not a non-empty vector.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1 or not len(labels):
        raise ArgumentError(
            f"labels must be a vector of at least one class. Received: shape {labels.shape}"
        )
    if num < 1:
        raise ArgumentError(f"num must be at least 1. Received: num={num}")
    generator = np.random.default_rng(seed)
    shuffled = generator.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    _, starts, counts = np.unique(labels[by_class], return_index=True, return_counts=True)
    if (counts > 1).any():
        starts, counts = starts[counts > 1], counts[counts > 1]
    rows: list[int] = []
    for turn in range(counts.max()):
        left = starts[counts > turn] + turn
        wanted = min(num - len(rows), len(left))
        stretches = np.linspace(0, len(left), wanted + 1).astype(np.int64)
        chosen = generator.integers(stretches[:-1], stretches[1:])
        rows.extend(by_class[left[chosen]])
        if len(rows) == num:
            break
    return np.array(rows, dtype=np.int64)


def grid_html(
    rows: Sequence[RetrievalRow], title: str = "Retrieval", note: str = EACH_ROW, behind: str = ""
) -> str:
    """The grid as an HTML section: a list item for each row, framed as figure 4 of RankMI.

    A match has a full green frame and a ✓, another class a dashed red one and a ✗.

    Args:
        rows: list of `RetrievalRow`.
        title: above it, plain text.
        note: what the rows are, plain text.
        behind: HTML under the rows.

    Returns:
        str, empty if `rows` is.

    Raises:
        ValueError: if an image is not uint8 [h, w, 3].
    """
    if not rows:
        return ""
    matches = [bool(neighbor.match) for row in rows for neighbor in row.neighbors]
    lines = "\n".join(f'<li class="row">\n{_row(row)}\n</li>' for row in rows)
    return (
        f'<section class="card">\n<h2>{html.escape(title)}</h2>\n'
        f'<p class="soft">{html.escape(note)} {sum(matches)} of the {len(matches)} neighbours '
        "shown match.</p>\n"
        f'<ol class="rows">\n{lines}\n</ol>\n{behind}</section>'
    )


def _row(row: RetrievalRow) -> str:
    picture = array_picture(row.query, f"query: {row.class_name}")
    cells = [picture_cell("query", picture, row.class_name, html.escape(row.note))]
    for rank, neighbor in enumerate(row.neighbors, start=1):
        class_name, match = neighbor.class_name, neighbor.match
        alt = f"neighbour {rank}: {class_name}, {'same' if match else 'another'} class"
        mark = f'<span class="mark" aria-hidden="true">{"✓" if match else "✗"}</span>'
        picture, note = array_picture(neighbor.image, alt), f"{neighbor.similarity:.3f}"
        cells.append(picture_cell("match" if match else "other", picture, class_name, note, mark))
    return "\n".join(cells)


def array_picture(image: np.ndarray, alt: str) -> str:
    """An `<img>` that holds its own bytes: small images whole as PNG, others as small JPEGs."""
    image = np.asarray(image)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ArgumentError(
            "Images of a report must be uint8 [h, w, 3]. "
            f"Received: {image.dtype} {list(image.shape)}"
        )
    height, width = image.shape[:2]
    longest = max(height, width)
    encoded, kind = encoded_picture(image, 2 * _SHOWN, whole_up_to=_SHOWN)
    # Whole multiples keep pixels square.
    scale = _SHOWN // longest if kind == "png" else _SHOWN / longest
    size = f'width="{max(1, round(scale * width))}" height="{max(1, round(scale * height))}"'
    pixels = ' class="pixels"' if scale > 1 else ""
    return embedded_picture(encoded, kind, alt, size + pixels)
