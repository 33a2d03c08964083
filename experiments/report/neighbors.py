"""Some queries of a test set with the images found for them."""

import numpy as np

from experiments.report.retrieval_grid import Neighbour, RetrievalRow, choose_queries
from keras_dml.metrics.recall import make_index, neighbor_blocks
from pipelines import evaluation_batches


def retrieval_rows(embeddings, test, transform, gallery=None, items=None, queries=10, neighbours=5):
    """Queries spread over the classes, with their nearest neighbours by cosine similarity.

    Args:
        embeddings: of the test images, `[n, d]`.
        test: `ImageTable` of the test images.
        transform: evaluation transform, for the pictures.
        gallery: embeddings of what is searched, `[m, d]`; None: the other test images.
        items: `ImageTable` of the gallery.
        queries, neighbours: how many, at most.

    Returns:
        list of `RetrievalRow`.
    """
    chosen = choose_queries(test.labels, num=queries)
    items = items or test
    neighbours = min(neighbours, len(items) - (gallery is None))
    found, similarities = _nearest(embeddings, chosen, neighbours, gallery)
    if items is test:  # one pipeline: building it takes longer than decoding
        pictures = iter(_images(test.select(np.concatenate([chosen, found.ravel()])), transform))
        shown = [next(pictures) for _ in chosen]
    else:
        pictures = iter(_images(items.select(found.ravel()), transform))
        shown = _images(test.select(chosen), transform)
    return [
        RetrievalRow(
            image,
            _class_name(test, query),
            [
                Neighbour(
                    next(pictures),
                    _class_name(items, row),
                    float(similarity),
                    bool(items.labels[row] == test.labels[query]),
                )
                for row, similarity in zip(rows, scores)
            ],
        )
        for image, query, rows, scores in zip(shown, chosen, found, similarities)
    ]


def _nearest(embeddings, queries, k, gallery):
    """Rows and similarities of the queries' k nearest, without the query itself."""
    own_rows = queries if gallery is None else None
    index = make_index(embeddings if gallery is None else gallery, "cosine")
    _, rows, scores = zip(*neighbor_blocks(index, embeddings[queries], k, own_rows))
    return np.concatenate(rows), np.concatenate(scores)


def _images(table, transform):
    (batch,) = evaluation_batches(table, transform, len(table))
    return batch.numpy().round().astype("uint8")


def _class_name(table, row):
    return table.class_names[table.labels[row]]
