"""Queries with their nearest neighbors, as rows of pictures."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from experiments.evaluation.labeled_embeddings import EmbeddedSet, LabeledEmbeddings
from experiments.evaluation.query_order import (
    Answers,
    ClassRecall,
    best_and_worst,
    choose_queries,
    class_recalls,
)
from experiments.pages.embedding_map import map_rows, map_svg, places
from experiments.pages.page import Cell, Row, array_picture, breaking
from keras_dml.metrics.neighbors import make_index, neighbor_blocks
from pipelines import ImageTable, Split, evaluation_batches

_EACH_ROW = (
    "Each row: a query, then its nearest neighbors with their cosine similarity. ✓ and a solid "
    "frame: the query's class. ✗ and a dashed frame: another class."
)
_BEST = "The nearest match is far ahead of the nearest image of another class."
_WORST = "Another class is far ahead of the nearest match. Some labels may be wrong."
# The best and the worst are chosen among at most this many random queries.
_MOST_QUERIES = 10_000
# Neighbors that are examined, queries of a kind, and classes in the table.
_DEPTH, _OF_A_KIND, _MOST_CLASSES = 20, 4, 500


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
    def neighbors(self) -> int:
        """The number of neighbors."""
        return sum(cell.marked for row in self.rows for cell in row.cells)

    @property
    def matches(self) -> int:
        """The number of neighbors of the query's class."""
        return sum(cell.marked and cell.kind == "match" for row in self.rows for cell in row.cells)


class Shown(NamedTuple):
    """The pictures of a report: sections of queries, and the map of the embeddings as SVG."""

    grids: Sequence[Grid] = ()
    map: str = ""


class Neighbor(NamedTuple):
    """A neighbor: its image, uint8 `[h, w, 3]`, its class, its similarity, whether it matches."""

    image: np.ndarray
    class_name: str
    similarity: float
    match: bool


def retrieval_row(
    image: np.ndarray, class_name: str, neighbors: Iterable[Neighbor], note: str = "query"
) -> Row:
    """Return a query with its neighbors, the nearest first.

    Args:
        image: uint8 `[h, w, 3]`.
        class_name: Class of the query.
        neighbors: Its neighbors.
        note: Text below the query.
    """
    cells = [Cell("query", array_picture(image), class_name, note, f"query: {class_name}")]
    for rank, (picture, name, similarity, match) in enumerate(neighbors, start=1):
        kind, words = ("match", "same class") if match else ("other", "another class")
        alt = f"neighbor {rank}: {name}, {words}"
        note = f"{similarity:z.3f}"
        cells.append(Cell(kind, array_picture(picture), name, note, alt, marked=True))
    return Row(cells)


def shown_of(images: LabeledEmbeddings) -> Shown:
    """Return the pictures of a report. It takes seconds, and a minute for 100,000 images."""
    test, gallery, catalog = images.queries, images.gallery, images.catalog
    answers = _answers(test, gallery)
    chosen = choose_queries(test.labels)
    sections = [("Retrieval", _EACH_ROW, chosen, ["query"] * len(chosen))]
    classes = [] if answers is None else class_recalls(answers)
    if answers is not None:
        best, worst = best_and_worst(answers, _OF_A_KIND)
        wrong = [each for each in classes if each.right < each.queries][:_OF_A_KIND]
        sections += [
            ("Best queries", _BEST, best, ["query"] * len(best)),
            ("Worst queries", _WORST, worst, ["query"] * len(worst)),
            (
                "Classes most confused",
                "The classes with the lowest R@1, each with its most confident wrong query.",
                np.array([each.example for each in wrong], np.int64),
                [f"R@1 {each.right} of {each.queries}" for each in wrong],
            ),
        ]
    # One call for all queries: to build an index or a pipeline takes longer than to use it.
    rows = iter(
        retrieval_rows(
            test,
            np.concatenate([queries for _, _, queries, _ in sections]),
            images.transform,
            gallery,
            [note for *_, notes in sections for note in notes],
        )
    )
    grids = [Grid(title, [next(rows) for _ in queries], text)
             for title, text, queries, _ in sections]  # fmt: skip
    if classes:
        few = ", the lowest" * (len(classes) > _MOST_CLASSES)
        table = _class_table(classes[:_MOST_CLASSES], _table(test), _table(gallery or test))
        title = f"Recall of {len(table):,} classes{few}"
        grids[-1] = grids[-1]._replace(classes=table, classes_title=title)
    if catalog is not None and catalog.table is not None:
        in_catalog = retrieval_rows(test, chosen, images.transform, catalog)
        grids.append(Grid("Retrieval in the catalog", in_catalog))
    return Shown(grids, _map(test, images.transform))


def _class_table(
    classes: Sequence[ClassRecall], table: ImageTable, items: ImageTable
) -> list[tuple[str, list[str]]]:
    """Return a line for each class: its name, recall, number of queries, and frequent mistake."""
    return [
        (
            breaking(table.class_names[each.label]),
            [
                f"{100 * each.right / each.queries:.0f}",
                f"{each.queries:,}",
                "–" if each.instead is None else breaking(items.class_names[each.instead]),
            ],
        )
        for each in classes
    ]


def _answers(test: EmbeddedSet, gallery: EmbeddedSet | None) -> Answers | None:
    """Return the neighbors of the queries that have a match, or of a random part of them."""
    table, items = _table(test), _table(gallery or test)
    count = len(table)
    queries = np.arange(count)
    if count > _MOST_QUERIES:
        drawn = np.random.default_rng(0).choice(count, _MOST_QUERIES, replace=False)
        queries = np.sort(drawn)
    matched = np.isin(table.labels, items.labels)
    if gallery is None:
        matched = np.bincount(table.labels)[table.labels] > 1
    queries = queries[matched[queries]]
    depth = min(_DEPTH, len(items) - (gallery is None))
    if not len(queries) or depth <= 0:
        return None
    rows, similarities = _nearest(test, queries, depth, gallery)
    return Answers(queries, table.labels[queries], items.labels[rows], similarities)


def _map(test: EmbeddedSet, transform: Callable[..., tf.Tensor]) -> str:
    table = _table(test)
    rows = map_rows(len(table))
    where = places(np.asarray(test.embeddings[rows], np.float32))
    if where is None:
        return ""
    names = [table.class_names[label] for label in table.labels[rows]]
    return map_svg(
        where, names, lambda numbers: pictures_of(table.select(rows[numbers]), transform)
    )


def retrieval_rows(
    test: EmbeddedSet,
    chosen: npt.NDArray[np.int64],
    transform: Callable[..., tf.Tensor],
    gallery: EmbeddedSet | None = None,
    notes: Sequence[str] | None = None,
    num_neighbors: int = 5,
) -> list[Row]:
    """Return queries with their nearest neighbors by cosine similarity.

    Args:
        test: The images that contain the queries.
        chosen: Row numbers of the queries.
        transform: Evaluation transform, for the pictures.
        gallery: The images to search in. The default is the other test images.
        notes: Text below each query. The default is "query".
        num_neighbors: Number of neighbors, at most.
    """
    if not len(chosen):
        return []
    table, items = _table(test), _table(gallery or test)
    num_neighbors = min(num_neighbors, len(items) - (gallery is None))
    nearest, similarities = _nearest(test, chosen, num_neighbors, gallery)
    queries = pictures_of(table.select(chosen), transform)
    found = pictures_of(items.select(nearest.ravel()), transform)
    found = found.reshape(*nearest.shape, *found.shape[1:])
    rows = []
    for place, (query, note) in enumerate(zip(chosen, notes or ["query"] * len(chosen))):
        label = table.labels[query]
        labels = items.labels[nearest[place]]
        names = [items.class_names[each] for each in labels]
        neighbors = map(Neighbor, found[place], names, similarities[place], labels == label)
        rows.append(retrieval_row(queries[place], table.class_names[label], neighbors, note))
    return rows


def same_queries(runs: Mapping[str, pathlib.Path], data: Split, transform: Callable) -> Grid | None:
    """Return some queries of the runs' test images, with a row for each run.

    Args:
        runs: Name -> the folder of a finished run.
        data: The images of one of the runs.
        transform: Its evaluation transform, for the pictures.

    Returns:
        None if the runs do not have the same test images.
    """
    table = data.test
    chosen = choose_queries(table.labels, 4)
    found = []
    for name, folder in runs.items():
        with np.load(folder / "test_embeddings.npz") as saved:
            if not np.array_equal(saved["labels"], table.labels):
                return None
            paths = table.paths
            if paths is not None and not np.array_equal(saved.get("paths", paths), paths):
                return None
            gallery = None
            if data.gallery is not None:
                items = data.gallery
                gallery = EmbeddedSet(saved["gallery_embeddings"], items.labels, items)
            test = EmbeddedSet(saved["embeddings"], table.labels, table)
        found.append(retrieval_rows(test, chosen, transform, gallery, [name] * len(chosen)))
    # Query by query, so that the rows of a query are next to each other.
    return Grid("The same queries by each run", [row for query in zip(*found) for row in query])


def _nearest(
    test: EmbeddedSet, queries: np.ndarray, k: int, gallery: EmbeddedSet | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and similarities of the queries' k nearest, without the query."""
    own_rows = queries if gallery is None else None
    index = make_index((gallery or test).embeddings, "cosine")
    _, rows, scores = zip(*neighbor_blocks(index, test.embeddings[queries], k, own_rows))
    return np.concatenate(rows), np.concatenate(scores)


def pictures_of(table: ImageTable, transform: Callable[..., tf.Tensor]) -> np.ndarray:
    """Return every image of a table as the model gets it, uint8 `[n, h, w, 3]`."""
    (batch,) = evaluation_batches(table, transform, len(table))
    return batch.numpy().round().astype("uint8")


def _table(images: EmbeddedSet) -> ImageTable:
    if images.table is None:
        raise TypeError("the images of a grid must be known")
    return images.table
