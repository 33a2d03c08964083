"""Recall at K among the rows of one set, or in a gallery. Needs TensorFlow (through the index)."""

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


def _checked(embeddings, gallery, metric):
    """The index to search, the queries, and whether they are its own rows."""
    from keras_dml.retrieval.index import finite_rows

    if gallery is None:
        embeddings = np.asarray(embeddings)
        return _index(embeddings, metric), embeddings, True
    queries, gallery = finite_rows(embeddings, "embeddings"), finite_rows(gallery, "gallery")
    if not len(queries) or not len(gallery) or queries.shape[1] != gallery.shape[1]:
        raise ValueError(
            "embeddings and gallery must have a row or more each, of the same width. "
            f"Received: shapes {queries.shape} and {gallery.shape}"
        )
    return _index(gallery, metric), queries, False


def _check_k(name, k, index, own_rows):
    most = index.num_items - own_rows
    if isinstance(k, bool) or not isinstance(k, numbers.Integral) or not 1 <= k <= most:
        items = "other items" if own_rows else "items in gallery"
        raise ValueError(
            f"{name} must be whole numbers from 1 to the number of {items}, {most}. "
            f"Received: {name}={k!r}"
        )


def check_labels(name, labels, rows):
    """ValueError unless `labels` are `[rows]`."""
    if labels.shape != (rows,):
        raise ValueError(
            f"{name} must have shape [{rows}], one for each row of "
            f"{'gallery' if name == 'gallery_labels' else 'embeddings'}. "
            f"Received: {name} of shape {labels.shape}"
        )


def _neighbour_blocks(index, queries, k, own_rows):
    """Yields (queries' slice, rows `[q, k]`, scores `[q, k]`); of own rows without the query's."""
    with tqdm(
        total=len(queries), unit=" queries", delay=_SECONDS_WITHOUT_BAR, leave=False,
        disable=None, desc=f"nearest {k} ({index.metric})",
    ) as bar:  # fmt: skip
        for start in range(0, len(queries), _BLOCK):
            block = slice(start, min(start + _BLOCK, len(queries)))
            rows, scores = index.search(queries[block], k + own_rows)
            if own_rows:
                left_out = rows == np.arange(block.start, block.stop)[:, None]
                # More than k copies of lower row number can push the own row off the end.
                left_out[~left_out.any(axis=1), -1] = True
                rows, scores = (found[~left_out].reshape(-1, k) for found in (rows, scores))
            yield block, rows, scores
            bar.update(len(rows))


def nearest_neighbours(embeddings, k, metric="cosine", gallery=None):
    """The k nearest other rows of every row, nearest first, equally near ones in row order.

    Args:
        embeddings: numbers `[n, d]`, n at least 2 (1 with a gallery).
        k: from 1 to n - 1, or to m.
        metric: "cosine" or "l2".
        gallery: numbers `[m, d]`; with it, its nearest rows are found instead, and none left out.

    Returns:
        `(rows, scores)`: int64 `[n, k]`, without a gallery never a row's own number (its duplicates
        do count), and float32 `[n, k]` similarities or distances.

    Raises:
        ValueError: k out of range, widths that differ, or embeddings and metric that
            `retrieval.Index` refuses.
    """
    index, queries, own_rows = _checked(embeddings, gallery, metric)
    _check_k("k", k, index, own_rows)
    rows = np.empty((len(queries), k), np.int64)
    scores = np.empty((len(queries), k), np.float32)
    for block, block_rows, block_scores in _neighbour_blocks(index, queries, k, own_rows):
        rows[block], scores[block] = block_rows, block_scores
    return rows, scores


def recall_at_k(embeddings, labels, ks, metric="cosine", gallery=None, gallery_labels=None):
    """R@K: the share of rows with a row of their class among their K nearest other rows.

    The protocol of CUB, Cars-196 and Stanford Online Products (Song et al., 2016, "Deep metric
    learning via lifted structured feature embedding", section 5): every row is a query against
    all others, and a query whose class has no other item counts as a miss. With a gallery, the
    protocol of In-Shop (Liu et al., 2016, "DeepFashion", section 4.2): the K nearest rows of the
    gallery, none left out; a query whose class the gallery lacks counts as a miss.

    Args:
        embeddings: numbers `[n, d]`, n at least 2 (1 with a gallery).
        labels: class of each row, `[n]`.
        ks: the values of K, each from 1 to n - 1, or to m.
        metric: "cosine" or "l2".
        gallery: numbers `[m, d]`, m at least 1, that are searched instead of the other rows.
        gallery_labels: class of each row of the gallery, `[m]`.

    Returns:
        `{K: fraction}` in the order of `ks`.

    Raises:
        ValueError: no K or one out of range, labels of another shape, one of gallery and
            gallery_labels without the other, widths that differ, or embeddings and metric that
            `retrieval.Index` refuses.
    """
    labels, ks = np.asarray(labels), list(ks)
    if (gallery is None) != (gallery_labels is None):
        missing = "gallery" if gallery is None else "gallery_labels"
        raise ValueError(
            f"gallery and gallery_labels must be given together. Received: {missing}=None"
        )
    index, queries, own_rows = _checked(embeddings, gallery, metric)
    check_labels("labels", labels, len(queries))
    if not own_rows:
        gallery_labels = np.asarray(gallery_labels)
        check_labels("gallery_labels", gallery_labels, index.num_items)
    if not ks:
        raise ValueError("ks must name at least one K. Received: ks=[]")
    for k in ks:
        _check_k("ks", k, index, own_rows)
    of_items = labels if own_rows else gallery_labels
    hits = dict.fromkeys(ks, 0)
    for block, rows, _ in _neighbour_blocks(index, queries, max(ks), own_rows):
        same_class = of_items[rows] == labels[block][:, None]
        for k in hits:
            hits[k] += int(same_class[:, :k].any(axis=1).sum())
    return {k: count / len(queries) for k, count in hits.items()}
