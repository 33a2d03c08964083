"""Queries with their nearest neighbors, as rows of pictures."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from experiments.evaluation.embedded_sets import EmbeddedSet, EmbeddedSets, nearest
from experiments.evaluation.embedding_file import UnreadableError, read_npz
from experiments.pages import query_order
from experiments.pages.embedding_map import Map, map_of
from experiments.pages.page import Cell, Row, array_picture, breaking
from keras_dml._files.manifest import DamagedError, Manifest
from keras_dml.metrics.neighbors import make_index
from pipelines import ImageTable, Split, evaluation_batches

_LOGGER = logging.getLogger("experiments")
_EACH_ROW = (
    "Each row: a query, then its nearest neighbors with their cosine similarity. ✓ and a solid "
    "frame: the query's class. ✗ and a dashed frame: another class."
)
_BEST = "The nearest match is far ahead of the nearest image of another class."
_WORST = "Another class is far ahead of the nearest match. Some labels may be wrong."
_CONFUSED = "The classes with the lowest R@1, each with its most confident wrong query."
# The best and the worst are chosen among at most this many random queries.
_MOST_QUERIES = 10_000
# Neighbors that are examined and shown, queries of a kind, and classes in the table.
_DEPTH, _NEIGHBORS, _OF_A_KIND, _MOST_CLASSES = 20, 5, 4, 500


class Grid(NamedTuple):
    """A section of a page: queries with their neighbors.

    Attributes:
        title: Title of the section.
        rows: A row for each query.
        note: What the rows are.
        classes: Rows of a table of classes below the queries.
        classes_title: Title of this table.
    """

    title: str
    rows: Sequence[Row]
    note: str = _EACH_ROW
    classes: Sequence[tuple[str, Sequence[str]]] = ()
    classes_title: str = ""

    @property
    def marked(self) -> list[Cell]:
        """The neighbors."""
        return [cell for row in self.rows for cell in row.cells if cell.marked]


class Shown(NamedTuple):
    """The pictures of a report: sections of queries, and the map of the embeddings."""

    grids: Sequence[Grid] = ()
    map: Map | None = None


def shown_of(images: EmbeddedSets) -> Shown:
    """Return the pictures of a report. It takes seconds, and a minute for 100,000 images."""
    test, gallery, catalog = images.queries, images.gallery, images.catalog
    chosen = query_order.choose_queries(test.labels)
    # Title, text, and queries with their notes of each section.
    sections = [("Retrieval", _EACH_ROW, dict.fromkeys(chosen, "query"))]
    answers = _answers(test, gallery)
    if answers is not None:
        best, worst = query_order.best_and_worst(answers, _OF_A_KIND)
        classes = query_order.class_recalls(answers)
        wrong = [each for each in classes if each.right < each.queries][:_OF_A_KIND]
        examples = {each.example: f"R@1 {each.right} of {each.queries}" for each in wrong}
        sections += [
            ("Best queries", _BEST, dict.fromkeys(best, "query")),
            ("Worst queries", _WORST, dict.fromkeys(worst, "query")),
            ("Classes most confused", _CONFUSED, examples),
        ]
    # One call for all queries: to build an index or a pipeline takes longer than to use it.
    queries = np.array([query for *_, queries in sections for query in queries])
    notes = [note for *_, queries in sections for note in queries.values()]
    rows = iter(retrieval_rows(test, queries, images.transform, gallery, notes))
    grids = [Grid(title, [next(rows) for _ in queries], text) for title, text, queries in sections]
    if answers is not None:
        few = ", the lowest" * (len(classes) > _MOST_CLASSES)
        table = _class_table(classes[:_MOST_CLASSES], _table(test), _table(gallery or test))
        title = f"Recall of {len(table):,} classes{few}"
        grids[-1] = grids[-1]._replace(classes=table, classes_title=title)
    if catalog is not None and catalog.table is not None:
        in_catalog = retrieval_rows(
            test, chosen, images.transform, catalog, of_gallery=images.catalog_transform
        )
        grids.append(Grid("Retrieval in the catalog", in_catalog))
    return Shown(grids, map_of(test, lambda table: pictures_of(table, images.transform)))


def _class_table(
    classes: Sequence[query_order.ClassRecall], table: ImageTable, items: ImageTable
) -> list[tuple[str, list[str]]]:
    """Return a line for each class: its name, recall, number of queries, and frequent mistake."""
    lines: list[tuple[str, list[str]]] = []
    for each in classes:
        instead = "–" if each.instead is None else breaking(items.class_names[each.instead])
        cells = [f"{100 * each.right / each.queries:.0f}", f"{each.queries:,}", instead]
        lines.append((breaking(table.class_names[each.label]), cells))
    return lines


def _answers(test: EmbeddedSet, gallery: EmbeddedSet | None) -> query_order.Answers | None:
    """Return the neighbors of the queries that have a match, or of a random part of them."""
    table, items = _table(test), _table(gallery or test)
    queries = np.arange(len(table))
    if len(table) > _MOST_QUERIES:
        drawn = np.random.default_rng(0).choice(len(table), _MOST_QUERIES, replace=False)
        queries = np.sort(drawn)
    matches = np.bincount(items.labels, minlength=table.labels.max() + 1)[table.labels]
    queries = queries[matches[queries] > (gallery is None)]
    if not len(queries):
        return None
    rows, similarities = _nearest(test, queries, _DEPTH, gallery)
    return query_order.Answers(queries, table.labels[queries], items.labels[rows], similarities)


def retrieval_rows(
    test: EmbeddedSet,
    chosen: npt.NDArray[np.int64],
    transform: Callable[..., tf.Tensor],
    gallery: EmbeddedSet | None = None,
    notes: Sequence[str] | None = None,
    of_gallery: Callable[..., tf.Tensor] | None = None,
) -> list[Row]:
    """Return queries with their nearest neighbors by cosine similarity.

    Args:
        test: The images that contain the queries.
        chosen: Row numbers of the queries, at least one.
        transform: Evaluation transform, for the pictures.
        gallery: The images to search in. The default is the other test images.
        notes: Text below each query. The default is "query".
        of_gallery: Transform for the pictures of the gallery. The default is `transform`.
    """
    table, items = _table(test), _table(gallery or test)
    neighbors, similarities = _nearest(test, chosen, _NEIGHBORS, gallery)
    queries = pictures_of(table.select(chosen), transform)
    found = pictures_of(items.select(neighbors.ravel()), of_gallery or transform)
    found = found.reshape(*neighbors.shape, *found.shape[1:])
    rows = []
    for place, label in enumerate(table.labels[chosen]):
        name, note = table.class_names[label], notes[place] if notes else "query"
        cells = [Cell("query", array_picture(queries[place]), name, note, f"query: {name}")]
        for rank, row in enumerate(neighbors[place]):
            match, name = items.labels[row] == label, items.class_names[items.labels[row]]
            kind, words = ("match", "same class") if match else ("other", "another class")
            picture, note = array_picture(found[place, rank]), f"{similarities[place, rank]:z.3f}"
            alt = f"neighbor {rank + 1}: {name}, {words}"
            cells.append(Cell(kind, picture, name, note, alt, marked=True))
        rows.append(Row(cells))
    return rows


def same_queries(runs: Mapping[str, pathlib.Path], data: Split, transform: Callable) -> Grid | None:
    """Return some queries of the runs' test images, with a row for each run.

    Args:
        runs: Name -> the folder of a finished run.
        data: The images of one of the runs.
        transform: Its evaluation transform, for the pictures.

    Returns:
        None if the runs do not have the same test images, or a file of embeddings is damaged.
    """
    table, items = data.test, data.gallery
    chosen = query_order.choose_queries(table.labels, 4)
    found = []
    for name, folder in runs.items():
        try:
            saved, _ = read_npz(Manifest(folder).check("test_embeddings.npz", earlier=True))
            embeddings, labels = saved["embeddings"], saved["labels"]
            gallery = None
            if items is not None:
                gallery = EmbeddedSet(saved["gallery_embeddings"], items.labels, items)
        except (DamagedError, KeyError, OSError, UnreadableError) as error:
            reason = getattr(error, "strerror", None) or error
            _LOGGER.warning("no pictures of %s: its test_embeddings.npz: %s", folder, reason)
            return None
        if not np.array_equal(labels, table.labels):
            return None
        paths = table.paths
        if paths is not None and not np.array_equal(saved.get("paths", paths), paths):
            return None
        test = EmbeddedSet(embeddings, table.labels, table)
        found.append(retrieval_rows(test, chosen, transform, gallery, [name] * len(chosen)))
    # Query by query, so that the rows of a query are next to each other.
    return Grid("The same queries by each run", [row for query in zip(*found) for row in query])


def _nearest(
    test: EmbeddedSet, queries: np.ndarray, k: int, gallery: EmbeddedSet | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and similarities of the queries' k nearest, or of all, without the query."""
    items = (gallery or test).embeddings
    k = min(k, len(items) - (gallery is None))
    own_rows = queries if gallery is None else None
    return nearest(make_index(items, "cosine"), test.embeddings[queries], k, own_rows)


def pictures_of(table: ImageTable, transform: Callable[..., tf.Tensor]) -> np.ndarray:
    """Return every image of a table as the model gets it, uint8 `[n, h, w, 3]`."""
    (batch,) = evaluation_batches(table, transform, len(table))
    return batch.numpy().round().astype("uint8")


def _table(images: EmbeddedSet) -> ImageTable:
    if images.table is None:
        raise TypeError("the images of a grid must be known")
    return images.table
