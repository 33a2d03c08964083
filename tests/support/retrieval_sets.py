"""Retrieval by loops, and a difficult set of embeddings for it."""

import numpy as np


def naive_neighbors(embeddings, metric, gallery=None):
    """Return all other rows, or all gallery rows, by (score as float32, row), in float64."""
    embeddings = np.asarray(embeddings, np.float64)
    items = embeddings if gallery is None else np.asarray(gallery, np.float64)
    result = []
    for query in range(len(embeddings)):
        order = []
        for row in range(len(items)):
            if gallery is None and row == query:
                continue
            a, b = embeddings[query], items[row]
            if metric == "l2":
                order.append((np.float32(np.sqrt(((a - b) ** 2).sum())), row))
            else:
                lengths = np.sqrt((a**2).sum() * (b**2).sum())
                order.append((np.float32(-(a * b).sum() / lengths if lengths else 0), row))
        result.append([row for _, row in sorted(order)])
    return result


def naive_recall(embeddings, labels, k, metric, gallery=None, gallery_labels=None):
    hits = 0
    of_items = labels if gallery is None else gallery_labels
    for query, rows in enumerate(naive_neighbors(embeddings, metric, gallery)):
        hits += any(of_items[row] == labels[query] for row in rows[:k])
    return hits / len(labels)


def awkward_set(seed=0):
    """Return 80 rows of 12 classes: copies in and across classes, zero rows, two lone classes."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 10, 80)
    embeddings = generator.normal(size=(80, 6)).astype(np.float32)
    embeddings[30:45] = embeddings[2]
    embeddings[[5, 50, 51]] = 0
    labels[0], labels[79] = 100, 101
    return embeddings, labels
