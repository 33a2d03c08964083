"""Join copies in search results."""

from collections.abc import Sequence

import numpy as np

from experiments.searching.answer import SearchResult

__all__ = ["grouped"]


def grouped(
    results: Sequence[SearchResult], embeddings: np.ndarray, similarity: float, k: int
) -> list[SearchResult]:
    """Return the first k results with copies joined to the nearest of them.

    Args:
        results: the results, nearest first. More than k results let copies be counted.
        embeddings: their embeddings, float `[n, d]`.
        similarity: the cosine similarity of copies.
        k: the number of results.
    """
    rows = np.asarray(embeddings, np.float64)
    lengths = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    rows = rows / np.where(lengths, lengths, 1)[:, None]
    # Of a pair of equal rows the product may be less than 1 by rounding.
    least = similarity - 1e-6
    joined: dict[int, list[str]] = {}
    free = np.ones(len(rows), bool)
    for first in range(len(results)):
        if not free[first]:
            continue
        if len(joined) == k:
            break
        near = free & (rows @ rows[first] >= least)
        near[: first + 1] = False
        free &= ~near
        joined[first] = [results[other].path for other in np.flatnonzero(near).tolist()]
    return [results[row]._replace(alike=tuple(paths)) for row, paths in joined.items()]
