import numpy as np
import pytest
from retrieval_sets import awkward_set, naive_neighbors, naive_recall

from keras_dml._common.rows import normalized
from keras_dml.metrics import ranks, recall_at_k
from keras_dml.metrics.ranks import rank_bounds
from keras_dml.retrieval import METRICS


def naive_numbers_nearer(embeddings, labels, metric, gallery=None, gallery_labels=None):
    """Count the items before the first of the query's class, by naive float64 loops."""
    of_items = labels if gallery is None else gallery_labels
    numbers = []
    for query, rows in enumerate(naive_neighbors(embeddings, metric, gallery)):
        same = [of_items[row] == labels[query] for row in rows]
        numbers.append(same.index(True) if any(same) else len(of_items))
    return np.array(numbers)


def prepared(rows, metric):
    return normalized(rows) if metric == "cosine" else rows


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("block", [1024, 16, 7])
def test_the_bounds_are_valid_and_tight_without_ties(metric, block, monkeypatch):
    monkeypatch.setattr(ranks, "_BLOCK", block)
    embeddings, labels = awkward_set()
    codes = np.unique(labels, return_inverse=True)[1]
    rows = prepared(embeddings, metric)
    low, high = rank_bounds(rows, codes, rows, codes, metric, own_rows=True)
    expected = naive_numbers_nearer(embeddings, labels, metric)
    assert (low <= expected).all() and (expected <= high).all()
    assert (low[[0, 79]] == 80).all() and (high[[0, 79]] == 80).all()  # one-image classes
    # Groups of equal rows that contain an image of the class.
    assert np.sum(high[30:45] - low[30:45] >= 13) >= 10

    distinct = np.random.default_rng(1).normal(size=(60, 5)).astype(np.float32)
    rows, codes = prepared(distinct, metric), np.arange(60) % 9
    low, high = rank_bounds(rows[:25], codes[:25], rows[25:], codes[25:], metric, own_rows=False)
    numbers = naive_numbers_nearer(distinct[:25], codes[:25], metric, distinct[25:], codes[25:])
    np.testing.assert_array_equal(low, numbers)
    np.testing.assert_array_equal(high, numbers)


@pytest.mark.parametrize("metric", METRICS)
def test_vectors_beyond_float32_products_use_the_index(metric):
    embeddings, labels = awkward_set(2)
    huge = embeddings * np.float32(1e25)
    recall = recall_at_k(huge, labels, [1, 5], metric)
    assert recall == {k: naive_recall(huge, labels, k, metric) for k in (1, 5)}
