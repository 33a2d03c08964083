"""Search by a prefix of each embedding, with re-scoring by the full embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from keras_dml._common.checks import check_whole
from keras_dml._common.errors import argument_error
from keras_dml._common.rows import normalized
from keras_dml._common.types import Float32Array, Metric
from keras_dml.retrieval.index import Index, in_blocks
from keras_dml.retrieval.products import ExactProducts

if TYPE_CHECKING:
    from keras_dml.retrieval.items import Items


class PrefixIndex(Index):
    """An index that searches by a prefix of each embedding and re-scores by the full embedding.

    A query's first `length` numbers (normalized for "cosine") are compared with the prefixes of all
    items. The `candidates` nearest items, or k if that is more, are ordered by the full embeddings.
    Scores therefore equal the scores of `ExactIndex`, but items can be missing. A query costs
    `length / dimensions` of an exact query. If `candidates` is the number of items, the result
    equals `ExactIndex`.

    Use this index for embeddings trained with `losses.MatryoshkaLoss`. `measured_recall` shows how
    well it works for other embeddings. Memory contains the items and their prefixes, in float32.
    In a SavedModel, the search is exact.

    Examples:
        >>> index = PrefixIndex(embeddings, length=64)  # [n, 128]
        >>> ids, scores = index.search(queries, k=10)
        >>> recall = index.measured_recall  # of its answers, about 0.998

    See `Index` for the other arguments, order, and errors.

    Args:
        length: Length of the prefixes, from 1 to d - 1.
        candidates: Number of items to re-score for each query, at least 1.

    Raises:
        ValueError: `length` or `candidates` is out of range.

    Reference: Kusupati et al., "Matryoshka Representation Learning", NeurIPS 2022, section 4.3.1
    (adaptive retrieval).
    """

    kind = "prefix"

    def __init__(
        self,
        embeddings: npt.ArrayLike | Items,
        metric: Metric = "cosine",
        ids: npt.ArrayLike | None = None,
        *,
        length: int,
        candidates: int = 200,
    ) -> None:
        self.length = check_whole("length", length, least=1)
        self.candidates = check_whole("candidates", candidates, least=1)
        self._recall: float | None = None
        super().__init__(embeddings, metric, ids)

    @property
    def measured_recall(self) -> float:
        """Fraction of the exact 10 nearest other items that a search finds. 1 for a single item.

        It is measured on first access, with 1,000 of the items (or all, if fewer) as queries.
        """
        with self._ready():
            if self._recall is None:
                self._recall = self._recall_measure()(self._nearest)
            return self._recall

    def parameters(self) -> dict[str, object]:  # noqa: D102, as in Index
        return {"length": self.length, "candidates": self.candidates}

    def _build(self) -> None:
        if self.length >= self.dimensions:
            wanted = f"less than the {self.dimensions} dimensions of the embeddings"
            raise argument_error("length", wanted, self.length)
        self._recall = None
        self._short = ExactProducts(self._prefixes(self._rows), self._metric)

    def _prefixes(self, rows: Float32Array) -> Float32Array:
        # A copy, because `ascontiguousarray` of a single row would be a view, and change that row.
        prefixes = rows[:, : self.length].copy()
        return normalized(prefixes, out=prefixes) if self._metric == "cosine" else prefixes

    def _nearest(self, queries: Float32Array, k: int) -> tuple[np.ndarray, np.ndarray]:
        return in_blocks(self._by_prefixes, queries, k, self._short.block)

    def _by_prefixes(self, queries: Float32Array, k: int) -> tuple[np.ndarray, np.ndarray]:
        asked = min(max(k, self.candidates), self.num_items)
        nearest, _ = self._short.candidates(self._prefixes(queries), asked)
        nearest = nearest[:, :asked]
        return self._ranked(queries, nearest, k)
