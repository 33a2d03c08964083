import numpy as np
import pytest
from retrieval_sets import awkward_set, naive_neighbors

from keras_dml.metrics import neighbors, precision_at_r
from keras_dml.retrieval import METRICS


def naive_precision(embeddings, labels, metric, gallery=None, gallery_labels=None):
    of_items = labels if gallery is None else gallery_labels
    averages, precisions, without = [], [], 0
    for query, rows in enumerate(naive_neighbors(embeddings, metric, gallery)):
        matches = sum(of_items[row] == labels[query] for row in rows)
        if not matches:
            without += 1
            continue
        average = hits = 0
        for place, row in enumerate(rows[:matches], start=1):
            if of_items[row] == labels[query]:
                hits += 1
                average += hits / place
        averages.append(average / matches)
        precisions.append(hits / matches)
    return sum(averages) / len(averages), sum(precisions) / len(precisions), without


@pytest.mark.parametrize("metric", METRICS)
def test_precision_agrees_with_a_naive_loop(metric, monkeypatch):
    monkeypatch.setattr(neighbors, "_PAIRS", 100)
    embeddings, labels = awkward_set()
    labels[10:60][labels[10:60] < 6] = 3  # one class is searched deeper than the others
    assert (labels == 3).sum() > 17
    found = precision_at_r(embeddings, labels, metric)
    assert found == pytest.approx(naive_precision(embeddings, labels, metric), abs=1e-12)
    assert found.queries_without_match == 3

    sets = (embeddings[:30], labels[:30], metric, embeddings[30:], labels[30:])
    assert precision_at_r(*sets) == pytest.approx(naive_precision(*sets), abs=1e-12)


def test_queries_without_matches():
    found = precision_at_r(np.eye(3), ["a", "b", "c"])
    assert np.isnan(found.map_at_r) and np.isnan(found.r_precision)
    assert found.queries_without_match == 3
