"""The nearest candidates that do not match their queries."""

from __future__ import annotations

import numpy as np

from keras_dml._common.rows import prepared_rows
from keras_dml.metrics.neighbors import MANY

# Most candidates that are searched for a query.
_MOST = 1024


def nearest_candidates(
    queries: np.ndarray,
    labels: np.ndarray,
    candidates: np.ndarray,
    candidate_labels: np.ndarray,
    k: int,
    skip: float,
) -> np.ndarray:
    """Find the k nearest candidates of other classes, below a fraction of the best match.

    Args:
        queries: Embeddings `[n, d]`.
        labels: Class ids `[n]`.
        candidates: Embeddings `[c, d]`.
        candidate_labels: Class ids `[c]`.
        k: Number of candidates.
        skip: Highest cosine, as a fraction of the cosine of the query's most similar match.

    Returns:
        int32 `[n, k]`, nearest first, and then −1.
    """
    from keras_dml.retrieval import TreeAH, build_index

    q, c = (prepared_rows(each, "embeddings", "cosine") for each in (queries, candidates))
    limits = skip * _best_matches(q, labels, c, candidate_labels)
    index = build_index(c, tree=TreeAH() if len(c) >= MANY else None)
    table = np.full((len(q), k), -1, np.int32)
    left, depth = np.arange(len(q)), 4 * k
    while len(left):
        depth = min(depth, len(c), _MOST)
        found, scores = index.search(q[left], depth)
        fits = candidate_labels[found] != labels[left, None]
        fits &= scores <= limits[left, None]
        order = np.argsort(~fits, axis=1, kind="stable")[:, :k]  # those that fit come first
        fits_of, rows_of = (np.take_along_axis(each, order, axis=1) for each in (fits, found))
        chosen = np.where(fits_of, rows_of, -1)
        table[left, : chosen.shape[1]] = chosen
        if depth == min(len(c), _MOST):
            break
        left, depth = left[fits.sum(axis=1) < k], 4 * depth
    return table


def _best_matches(
    q: np.ndarray, labels: np.ndarray, c: np.ndarray, candidate_labels: np.ndarray
) -> np.ndarray:
    """Return the cosine of each query and its most similar candidate of its class, `[n]`."""
    order, best = np.argsort(candidate_labels, kind="stable"), np.empty(len(q), np.float32)
    ordered = candidate_labels[order]
    by_class = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[by_class], prepend=labels[by_class[:1]] - 1))
    for rows in np.split(by_class, starts[1:]):
        first, end = (np.searchsorted(ordered, labels[rows[0]], side) for side in ("left", "right"))
        best[rows] = (q[rows] @ c[order[first:end]].T).max(axis=1)
    return best
