"""The nearest candidates that do not match their queries."""

from __future__ import annotations

import numpy as np

from keras_dml._common.blocks import slices
from keras_dml._common.rows import BLOCK, prepared_rows
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
    """Find the k nearest candidates of other classes, less similar than the best match.

    Args:
        queries: Embeddings `[n, d]`.
        labels: Class ids `[n]`.
        candidates: Embeddings `[c, d]`.
        candidate_labels: Class ids `[c]`.
        k: Number of candidates.
        skip: Highest cosine, as a fraction of the cosine m of the query's most similar match. If m
            is negative, the highest cosine is m.

    Returns:
        int32 `[n, k]`, nearest first, and then −1.
    """
    from keras_dml.retrieval import TreeAH, build_index

    q, c = (prepared_rows(each, "embeddings", "cosine") for each in (queries, candidates))
    best = _best_matches(q, labels, c, candidate_labels)
    limits = np.minimum(skip * best, best)
    index = build_index(c, tree=TreeAH() if len(c) >= MANY else None)
    table = np.full((len(q), k), -1, np.int32)
    left, depth = np.arange(len(q)), 4 * k
    while len(left):
        depth = min(depth, len(c), _MOST)
        enough = np.zeros(len(left), bool)
        for block in slices(len(left), BLOCK // depth):
            some = left[block]
            found, scores = index.search(q[some], depth)
            fits = candidate_labels[found] != labels[some, None]
            fits &= scores <= limits[some, None]
            order = np.argsort(~fits, axis=1, kind="stable")[:, :k]  # fitting ones come first
            fits_of, rows_of = (np.take_along_axis(each, order, axis=1) for each in (fits, found))
            table[some, : order.shape[1]] = np.where(fits_of, rows_of, -1)
            enough[block] = fits.sum(axis=1) >= k
        if depth == min(len(c), _MOST):
            break
        left, depth = left[~enough], 4 * depth
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
        matches = c[order[first:end]]
        for block in slices(len(rows), BLOCK // len(matches)):
            # In float64, so that a candidate as similar as the match is not above it by rounding.
            products = q[rows[block]].astype(np.float64) @ matches.T.astype(np.float64)
            best[rows[block]] = products.max(axis=1)
    return best
