"""Some queries of a test set with the images found for them."""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from experiments.report.retrieval_grid import Neighbor, RetrievalRow, choose_queries
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


def retrieval_rows(
    test: EmbeddedTable,
    transform: Callable[..., tf.Tensor],
    gallery: EmbeddedTable | None = None,
    num_queries: int = 10,
    num_neighbors: int = 5,
) -> list[RetrievalRow]:
    """Queries spread over the classes, with their nearest neighbors by cosine similarity.

    Args:
        test: the images that queries are chosen of.
        transform: evaluation transform, for the pictures.
        gallery: what is searched; None: the other test images.
        num_queries, num_neighbors: how many, at most.
    """
    chosen = choose_queries(test.table.labels, num=num_queries)
    items = (gallery or test).table
    num_neighbors = min(num_neighbors, len(items) - (gallery is None))
    nearest, similarities = _nearest(test.embeddings, chosen, num_neighbors, gallery)
    if gallery is None:  # one pipeline: building it takes longer than decoding
        rows = np.concatenate([chosen, nearest.ravel()])
        pictures = iter(_images(items.select(rows), transform))
        shown = [next(pictures) for _ in chosen]
    else:
        pictures = iter(_images(items.select(nearest.ravel()), transform))
        shown = list(_images(test.table.select(chosen), transform))
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


def _images(table: ImageTable, transform: Callable[..., tf.Tensor]) -> np.ndarray:
    (batch,) = evaluation_batches(table, transform, len(table))
    return batch.numpy().round().astype("uint8")


def _class_name(table: ImageTable, row: int) -> str:
    return table.class_names[table.labels[row]]
