"""Exact search by ScaNN's brute force. Needs ScaNN (Linux) and the TensorFlow it is built for."""

import functools

import numpy as np

from keras_dml.retrieval.exact import ExactProducts
from keras_dml.retrieval.index import Index

_QUERIES = 4096
# Items asked for beyond k: enough that the k-th nearest is seldom within rounding of the last.
_SPARE = 8


def import_scann():
    """The module `scann.scann_ops_pybind`.

    Raises:
        ImportError: ScaNN is not installed, or does not load with this TensorFlow.
    """
    try:
        from scann import scann_ops_pybind
    except ImportError:
        raise
    # Its compiled operations fail with an error of TensorFlow's when the versions do not match.
    except Exception as error:
        raise ImportError(f"ScaNN does not load: {error}") from error
    return scann_ops_pybind


class ScannIndex(Index):
    """The same answers as `ExactIndex`, found by ScaNN (Guo et al., 2020) in float32.

    ScaNN's own scores are rounded differently from call to call: two equal rows may get unequal
    ones, and an item on either side of the cut at k may swap with one as near. So ScaNN is asked
    for a few items more than k, these are scored again as `Index` defines, and a query whose
    k-th item is not nearer than the last one by more than float32 products can be wrong is
    searched again with float64 products. See `Index` for arguments, order and errors.

    Raises:
        ImportError: ScaNN is not installed, or does not load with this TensorFlow.
    """

    _block = _QUERIES

    def __init__(self, embeddings, metric="cosine"):
        super().__init__(embeddings, metric)
        # As in `ExactProducts`: small numbers keep more digits of a distance.
        self._centre = self._rows.mean(axis=0, dtype=np.float64) if metric == "l2" else 0.0
        items = self._centred(self._rows)
        self._longest = np.sqrt(np.einsum("nd,nd->n", items, items, dtype=np.float64).max())
        measure = "dot_product" if metric == "cosine" else "squared_l2"
        builder = import_scann().builder(items, min(_SPARE, self.num_items), measure)
        self._searcher = builder.score_brute_force().build()

    def _centred(self, rows):
        return (rows - self._centre).astype(np.float32)

    @functools.cached_property
    def _products(self):
        return ExactProducts(self._rows, self._metric)

    def _nearest(self, queries, k):
        asked = min(k + _SPARE, self.num_items)
        centred = self._centred(queries)
        candidates, raw = self._searcher.search_batched_parallel(centred, asked)
        rows, scores = self._ranked(queries, candidates, k)
        if asked < self.num_items:
            unsure = np.flatnonzero(~self._is_clear(centred, scores[:, -1], raw[:, -1]))
            for start in range(0, len(unsure), self._products.block if len(unsure) else 1):
                part = unsure[start : start + self._products.block]
                nearest = self._products.nearest(queries[part], k)
                rows[part], scores[part] = self._ranked(queries[part], nearest, k)
        return rows, scores

    def _is_clear(self, centred, kth, last):
        """Whether no item that ScaNN left out can be as near as the k-th found, `[q]`.

        Args:
            centred: the queries as ScaNN saw them, `[q, d]`.
            kth: the k-th best score, as `Index` defines it, `[q]`.
            last: ScaNN's score of the last item that it returned: similarity or squared distance.
        """
        # A float32 sum of d products is wrong by at most d·2⁻²⁴ times the vectors' lengths; the
        # 4 more cover the rounding of scores and of centred numbers. Written so that NaN (lengths
        # beyond float32's range) is not clear.
        error = (self.dimensions + 4) * 2.0**-24
        kth, last = kth.astype(np.float64), last.astype(np.float64)
        if self._metric == "cosine":
            return kth > last + error
        lengths = np.sqrt(np.einsum("qd,qd->q", centred, centred, dtype=np.float64))
        return kth**2 < last - error * (lengths + self._longest) ** 2
