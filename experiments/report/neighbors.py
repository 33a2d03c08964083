"""Some queries of a test set with the images found for them."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from experiments.report.embedding_map import map_rows, map_svg, places
from experiments.report.page import Grid
from experiments.report.picture_cell import breaking
from experiments.report.query_order import Answers, ClassRecall, best_and_worst, class_recalls
from experiments.report.retrieval_grid import Neighbor, RetrievalRow, choose_queries
from experiments.report.tables import html_table
from keras_dml.metrics.recall import make_index, neighbor_blocks
from pipelines import ImageTable, evaluation_batches


@dataclasses.dataclass(frozen=True)
class EmbeddedTable:
    """Images with their embeddings, `[n, d]`, a row for each."""

    table: ImageTable
    embeddings: np.ndarray


def embedded_table(table: ImageTable | None, embeddings: np.ndarray | None) -> EmbeddedTable | None:
    """Both together; None where one of them is missing."""
    if table is None or embeddings is None:
        return None
    return EmbeddedTable(table, embeddings)


class Shown(NamedTuple):
    """What a report shows of a test set.

    Attributes:
        retrieval: queries spread over the classes.
        further: the best and the worst ones, and the classes most confused.
        map: of the embeddings, an `<svg>` element; empty where there is nothing to see.
        catalog: the same queries with what is found in the catalog, where there is one.
    """

    retrieval: Sequence[RetrievalRow]
    further: Sequence[Grid]
    map: str
    catalog: Sequence[RetrievalRow]


# Queries whose neighbors are looked at to find the best and the worst; of more a share, by chance.
_MOST_QUERIES = 10_000
# Neighbors of each that are looked at, queries of a kind and classes that are shown, table rows.
_DEPTH, _OF_A_KIND, _MOST_CLASSES = 20, 4, 500


def shown_of(
    test: EmbeddedTable,
    transform: Callable[..., tf.Tensor],
    gallery: EmbeddedTable | None = None,
    catalog: EmbeddedTable | None = None,
) -> Shown:
    """Everything that a report shows of a test set; takes seconds, a minute for 100,000 images.

    Args:
        test: the test images.
        transform: evaluation transform, for the pictures.
        gallery: what is searched; None: the other test images.
        catalog: what is searched besides, where there is one.
    """
    items = (gallery or test).table
    count = len(test.table)
    queries = np.arange(count)
    if count > _MOST_QUERIES:
        drawn = np.random.default_rng(0).choice(count, _MOST_QUERIES, replace=False)
        queries = np.sort(drawn)
    # A query without a match can only be wrong, and says nothing of the model.
    held = np.isin(test.table.labels, items.labels)
    if gallery is None:
        held = np.bincount(test.table.labels)[test.table.labels] > 1
    queries = queries[held[queries]]
    chosen = choose_queries(test.table.labels)
    depth = min(_DEPTH, len(items) - (gallery is None))
    answers = None
    best = worst = np.empty([0], np.int64)
    if len(queries) and depth > 0:
        rows, similarities = _nearest(test.embeddings, queries, depth, gallery)
        answers = Answers(queries, test.table.labels[queries], items.labels[rows], similarities)
        best, worst = best_and_worst(answers, _OF_A_KIND)
    classes = class_recalls(answers) if answers is not None else []
    wrong = [one for one in classes if one.right < one.queries][:_OF_A_KIND]
    kinds = [chosen, best, worst, np.array([one.example for one in wrong], np.int64)]
    # Together: building an index or a pipeline takes longer than using it.
    found = iter(retrieval_rows(test, transform, np.concatenate(kinds), gallery))
    retrieval, of_best, of_worst, of_wrong = (
        list(itertools.islice(found, len(kind))) for kind in kinds
    )
    table = _recall_of_classes(classes, test.table.class_names)
    return Shown(
        retrieval,
        _grids(of_best, of_worst, of_wrong, wrong, table) if answers is not None else (),
        _map(test, transform),
        retrieval_rows(test, transform, chosen, catalog) if catalog else (),
    )


def _grids(
    best: Sequence[RetrievalRow],
    worst: Sequence[RetrievalRow],
    confused: Sequence[RetrievalRow],
    classes: Sequence[ClassRecall],
    table: str,
) -> list[Grid]:
    return [
        Grid(
            "Best queries",
            best,
            "Where the nearest match is furthest ahead of the nearest image of another class.",
        ),
        Grid(
            "Worst queries",
            worst,
            "Where another class is furthest ahead of the nearest match; labels may be wrong, too.",
        ),
        Grid(
            "Classes most confused",
            [
                row._replace(note=f"R@1 {one.right} of {one.queries}")
                for row, one in zip(confused, classes)
            ],
            "The classes with the lowest R@1, each by the query that was wrong most confidently.",
            table,
        ),
    ]


def _recall_of_classes(classes: Sequence[ClassRecall], names: Sequence[str]) -> str:
    rows = [
        (
            breaking(names[one.label]),
            [
                f"{100 * one.right / one.queries:.0f}",
                f"{one.queries:,}",
                "–" if one.instead is None else breaking(names[one.instead]),
            ],
        )
        for one in classes[:_MOST_CLASSES]
    ]
    what = f"Recall of {len(rows):,} classes" + ", the lowest" * (len(rows) < len(classes))
    table = html_table(["", "R@1, %", "queries", "instead mostly"], rows)
    return f'<details><summary>{what}</summary>\n<div class="scroll">{table}</div></details>\n'


def _map(test: EmbeddedTable, transform: Callable[..., tf.Tensor]) -> str:
    rows = map_rows(len(test.table))
    where = places(np.asarray(test.embeddings[rows], np.float32))
    if where is None:
        return ""
    names = [_class_name(test.table, row) for row in rows]
    return map_svg(
        where, names, lambda numbers: pictures_of(test.table.select(rows[numbers]), transform)
    )


def retrieval_rows(
    test: EmbeddedTable,
    transform: Callable[..., tf.Tensor],
    chosen: npt.NDArray[np.int64],
    gallery: EmbeddedTable | None = None,
    num_neighbors: int = 5,
) -> list[RetrievalRow]:
    """Queries with their nearest neighbors by cosine similarity.

    Args:
        test: the images that queries are chosen of.
        transform: evaluation transform, for the pictures.
        chosen: row numbers of the queries.
        gallery: what is searched; None: the other test images.
        num_neighbors: how many, at most.
    """
    if not len(chosen):
        return []
    items = (gallery or test).table
    num_neighbors = min(num_neighbors, len(items) - (gallery is None))
    nearest, similarities = _nearest(test.embeddings, chosen, num_neighbors, gallery)
    if gallery is None:  # one pipeline: building it takes longer than decoding
        rows = np.concatenate([chosen, nearest.ravel()])
        pictures = iter(pictures_of(items.select(rows), transform))
        shown = [next(pictures) for _ in chosen]
    else:
        pictures = iter(pictures_of(items.select(nearest.ravel()), transform))
        shown = list(pictures_of(test.table.select(chosen), transform))
    return [
        RetrievalRow(
            image,
            _class_name(test.table, query),
            [
                Neighbor(
                    next(pictures),
                    _class_name(items, row),
                    float(similarity),
                    bool(items.labels[row] == test.table.labels[query]),
                )
                for row, similarity in zip(rows, scores)
            ],
        )
        for image, query, rows, scores in zip(shown, chosen, nearest, similarities)
    ]


def _nearest(
    embeddings: np.ndarray, queries: np.ndarray, k: int, gallery: EmbeddedTable | None
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and similarities of the queries' k nearest, without the query itself."""
    own_rows = queries if gallery is None else None
    index = make_index(embeddings if gallery is None else gallery.embeddings, "cosine")
    _, rows, scores = zip(*neighbor_blocks(index, embeddings[queries], k, own_rows))
    return np.concatenate(rows), np.concatenate(scores)


def pictures_of(table: ImageTable, transform: Callable[..., tf.Tensor]) -> np.ndarray:
    """Every image of a table as the model sees it, uint8 `[n, h, w, 3]`."""
    (batch,) = evaluation_batches(table, transform, len(table))
    return batch.numpy().round().astype("uint8")


def _class_name(table: ImageTable, row: int) -> str:
    return table.class_names[table.labels[row]]
