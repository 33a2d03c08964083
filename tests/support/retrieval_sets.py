"""Retrieval by its definition, sets of embeddings for it, and the mark for tests with ScaNN."""

import importlib.metadata
import importlib.util

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from keras_dml.retrieval import ExactIndex

needs_scann = pytest.mark.skipif(
    importlib.util.find_spec("scann") is None, reason="ScaNN is not installed (Linux only)"
)


def _operations_load():
    found = [importlib.util.find_spec(name) for name in ("scann", "tensorflow")]
    return None not in found and importlib.metadata.version("tensorflow").startswith("2.20.")


#: Whether a SavedModel can contain a tree.
OPERATIONS_LOAD = _operations_load()
needs_operations = pytest.mark.skipif(
    not OPERATIONS_LOAD, reason="ScaNN's operations need TensorFlow 2.20"
)


def assert_same(one, other, queries, k=7):
    """Check that two indexes give the same answers."""
    for a, b in zip(one.search(queries, k), other.search(queries, k)):
        assert a.dtype.kind == b.dtype.kind
        np.testing.assert_array_equal(a, b)


def clustered(n=3000, seed=0):
    """Return rows around 300 centers in 8 of 32 dimensions, with a little noise in all."""
    shared = np.random.default_rng(0)
    centers = shared.normal(size=(300, 8)) @ shared.normal(size=(8, 32))
    generator = np.random.default_rng(seed)
    rows = centers[generator.integers(0, 300, n)] + 0.5 * generator.normal(size=(n, 32))
    return rows.astype(np.float32)


def clusters(classes, size, dimensions, scale, seed=0):
    """Return rows and labels of classes of equal size around random centers, plus noise."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), size)
    centers = scale * rng.normal(size=(classes, dimensions))
    return centers[labels] + rng.normal(size=(len(labels), dimensions)), labels


def naive_search(items, queries, metric):
    """Return the rows and scores of all items for each query, the best first, in float64.

    The order is by score as float32, then by row. The metric can also be "dot".
    """
    items, queries = np.asarray(items, np.float64), np.asarray(queries, np.float64)
    scores = cdist(queries, items) if metric == "l2" else (queries[:, None] * items).sum(axis=2)
    if metric == "cosine":
        lengths = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(items, axis=1)
        scores /= np.where(lengths, lengths, 1)
    scores = scores.astype(np.float32)
    order = np.argsort(scores if metric == "l2" else -scores, axis=1, kind="stable")
    return order, np.take_along_axis(scores, order, 1)


def naive_neighbors(embeddings, metric, gallery=None):
    """Return all other rows, or all gallery rows, the nearest first."""
    order, _ = naive_search(embeddings if gallery is None else gallery, embeddings, metric)
    if gallery is not None:
        return order
    return order[order != np.arange(len(order))[:, None]].reshape(len(order), -1)


def recall_at_10(index, embeddings):
    """Return recall by its definition: the share of each row's 10 nearest others in the result."""
    exact, _ = ExactIndex(embeddings, index.metric).search(embeddings, 11)
    found, _ = index.search(embeddings, 11)
    hits = 0
    for row, (wanted, got) in enumerate(zip(exact.tolist(), found.tolist())):
        hits += len((set(wanted) & set(got)) - {row})
    return hits / (10 * len(embeddings))


def awkward_set(seed=0):
    """Return 80 rows of 12 classes: copies in and across classes, zero rows, two lone classes."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 10, 80)
    embeddings = generator.normal(size=(80, 6)).astype(np.float32)
    embeddings[30:45] = embeddings[2]
    embeddings[[5, 50, 51]] = 0
    labels[0], labels[79] = 100, 101
    return embeddings, labels
