"""Recall at K among the rows of one set. Needs TensorFlow (through the index)."""

import numbers

import numpy as np
from tqdm import tqdm

# Queries whose neighbours are held at once.
_BLOCK = 4096
# A bar for searches of seconds would only be noise.
_SECONDS_WITHOUT_BAR = 20


def _index(embeddings, metric):
    # Imported here: the index needs TensorFlow, the losses and their metrics run on any backend.
    from keras_dml.retrieval import build_index

    return build_index(embeddings, metric)


def _check_k(name, k, num_items):
    if isinstance(k, bool) or not isinstance(k, numbers.Integral) or not 1 <= k < num_items:
        raise ValueError(
            f"{name} must be whole numbers from 1 to the number of other items, {num_items - 1}. "
            f"Received: {name}={k!r}"
        )


def _neighbour_blocks(index, embeddings, k):
    """Yields (queries' slice, rows `[q, k]`, scores `[q, k]`), own rows left out."""
    with tqdm(
        total=len(embeddings), unit=" queries", delay=_SECONDS_WITHOUT_BAR, leave=False,
        disable=None, desc=f"nearest {k} ({index.metric})",
    ) as bar:  # fmt: skip
        for start in range(0, len(embeddings), _BLOCK):
            queries = embeddings[start : start + _BLOCK]
            block = slice(start, start + len(queries))
            rows, scores = index.search(queries, k + 1)
            left_out = rows == np.arange(block.start, block.stop)[:, None]
            # More than k copies of lower row number can push the own row off the end.
            left_out[~left_out.any(axis=1), -1] = True
            shape = len(queries), k
            yield block, rows[~left_out].reshape(shape), scores[~left_out].reshape(shape)
            bar.update(len(queries))


def nearest_neighbours(embeddings, k, metric="cosine"):
    """The k nearest other rows of every row, nearest first, equally near ones in row order.

    Args:
        embeddings: numbers `[n, d]`, n at least 2.
        k: from 1 to n - 1.
        metric: "cosine" or "l2".

    Returns:
        `(rows, scores)`: int64 `[n, k]`, never a row's own number (its duplicates do count), and
        float32 `[n, k]` similarities or distances.

    Raises:
        ValueError: k out of range, or embeddings and metric that `retrieval.Index` refuses.
    """
    embeddings = np.asarray(embeddings)
    index = _index(embeddings, metric)
    _check_k("k", k, index.num_items)
    rows = np.empty((index.num_items, k), np.int64)
    scores = np.empty((index.num_items, k), np.float32)
    for block, block_rows, block_scores in _neighbour_blocks(index, embeddings, k):
        rows[block], scores[block] = block_rows, block_scores
    return rows, scores


def recall_at_k(embeddings, labels, ks, metric="cosine"):
    """R@K: the share of rows with a row of their class among their K nearest other rows.

    The protocol of CUB, Cars-196 and Stanford Online Products (Song et al., 2016, "Deep metric
    learning via lifted structured feature embedding", section 5): every row is a query against
    all others, and a query whose class has no other item counts as a miss.

    Args:
        embeddings: numbers `[n, d]`, n at least 2.
        labels: class of each row, `[n]`.
        ks: the values of K, each from 1 to n - 1.
        metric: "cosine" or "l2".

    Returns:
        `{K: fraction}` in the order of `ks`.

    Raises:
        ValueError: no K or one out of range, labels of another shape, or embeddings and metric
            that `retrieval.Index` refuses.
    """
    embeddings, labels, ks = np.asarray(embeddings), np.asarray(labels), list(ks)
    index = _index(embeddings, metric)
    if labels.shape != (index.num_items,):
        raise ValueError(
            f"labels must have shape [{index.num_items}], one for each row of embeddings. "
            f"Received: labels of shape {labels.shape}"
        )
    if not ks:
        raise ValueError("ks must name at least one K. Received: ks=[]")
    for k in ks:
        _check_k("ks", k, index.num_items)
    hits = dict.fromkeys(ks, 0)
    for block, rows, _ in _neighbour_blocks(index, embeddings, max(ks)):
        same_class = labels[rows] == labels[block][:, None]
        for k in hits:
            hits[k] += int(same_class[:, :k].any(axis=1).sum())
    return {k: count / index.num_items for k, count in hits.items()}
