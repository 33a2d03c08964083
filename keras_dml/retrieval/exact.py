"""The exact index."""

from __future__ import annotations

import numpy as np

from keras_dml._common.types import Float32Array
from keras_dml.retrieval.index import Index


class ExactIndex(Index):
    """The reference index: compares each query with all items.

    It stores only its items, in float32. A search takes at most a few hundred MB in addition to its
    inputs and outputs, for any number of queries. See `Index` for arguments, order, and errors.

    Examples:
        >>> items = [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]
        >>> index = ExactIndex(items, ids=["a", "b", "c"])
        >>> ids, similarities = index.search([[1.0, 0.1]], k=2)
        >>> ids
        array([['a', 'b']], dtype='<U1')
    """

    kind = "exact"

    def _build(self) -> None:
        _ = self._products  # now, so that no search has to wait

    def _nearest(self, queries: Float32Array, k: int) -> tuple[np.ndarray, np.ndarray]:
        return self._exactly(queries, k)
