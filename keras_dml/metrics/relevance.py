"""Which items are relevant to a query: those of its class, or its positives under a relation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import keras
import numpy as np
import numpy.typing as npt

from keras_dml._common.blocks import slices
from keras_dml._common.errors import ArgumentError, shape_error
from keras_dml._common.labels import joined_labels, plain_labels
from keras_dml._common.rows import finite_rows, normalized, rows_of_sets
from keras_dml._common.types import BoolArray, Float32Array, Int64Array, Metric, Tensor
from keras_dml._pairwise.arrays import of_one_dtype

if TYPE_CHECKING:
    from keras_dml import relations

# Numbers of one block of a relation's masks.
_NUMBERS = 2**24


class SameClassRelevance:
    """Relevance of the items that have the query's class.

    Args:
        codes: Class number of each query, `[n]`.
        item_codes: Class number of each item, `[m]`.
        own_rows: Whether the items are the queries, so that no query is relevant to itself.

    Attributes:
        counts: Number of relevant items of each query, int `[n]`, without the query itself.
    """

    def __init__(self, codes: np.ndarray, item_codes: np.ndarray, own_rows: bool) -> None:
        # Numbers of 32 bits compare faster.
        self.codes, self.item_codes = codes.astype(np.int32), item_codes.astype(np.int32)
        sizes = np.bincount(item_codes, minlength=codes.max() + 1)
        self.counts = sizes[codes] - own_rows

    def mask(self, queries: np.ndarray) -> BoolArray:
        """Return whether all items `[b, m]` have the classes of queries `[b]` (row numbers)."""
        return self.item_codes == self.codes[queries, None]

    def hits(self, queries: np.ndarray, found: np.ndarray) -> BoolArray:
        """Return whether found items `[b, k]` have the classes of queries `[b]` (row numbers)."""
        return self.item_codes[found] == self.codes[queries, None]

    def gains(self, queries: np.ndarray, found: np.ndarray) -> Float32Array:
        """Return 1 for items of the query's class, else 0."""
        return self.hits(queries, found).astype(np.float32)

    def best_gains(self, queries: np.ndarray, k: int) -> Float32Array:
        """Return a 1 for each relevant item, and then 0."""
        return (np.arange(k) < self.counts[queries, None]).astype(np.float32)


class RelationRelevance:
    """Relevance of the items that are positives of the query under a relation.

    Compares the labels of all n · m pairs, in blocks of bounded memory.

    Args:
        relation: A relation of `keras_dml.relations`.
        labels: Labels of the queries, n rows.
        item_labels: Labels of the items, m rows.
        own_rows: Whether the items are the queries, so that no query is relevant to itself.

    Attributes:
        counts: As in `SameClassRelevance`.
    """

    def __init__(
        self,
        relation: relations.Relation,
        labels: np.ndarray,
        item_labels: np.ndarray,
        own_rows: bool,
    ) -> None:
        self.relation, self.own_rows = relation, own_rows
        items = relation.checked_labels(item_labels, "labels" if own_rows else "gallery_labels")
        of_queries, self.items = of_one_dtype(relation.checked_labels(labels, "labels"), items)
        self.labels = keras.ops.convert_to_numpy(of_queries)
        everyone = np.arange(len(self.labels))
        self.counts = self._by_blocks(everyone, lambda block: self.mask(block).sum(axis=1))

    def hits(self, queries: np.ndarray, found: np.ndarray) -> BoolArray:
        """Return whether found items `[b, k]` are positives of queries `[b]`."""
        return self._by_blocks(queries, lambda *block: _taken(self.mask, *block), found)

    def gains(self, queries: np.ndarray, found: np.ndarray) -> Float32Array:
        """Return the relation's gains of found items `[b, k]` for queries `[b]`."""
        return self._by_blocks(queries, lambda *block: _taken(self._gains, *block), found)

    def best_gains(self, queries: np.ndarray, k: int) -> Float32Array:
        """Return the k largest gains of each query `[b]`, largest first."""
        best = self._by_blocks(queries, lambda block: -np.sort(-self._gains(block), axis=1)[:, :k])
        return np.pad(best, ((0, 0), (0, k - best.shape[1])))

    def _by_blocks(
        self, queries: np.ndarray, compute: Callable[..., np.ndarray], *more: np.ndarray
    ) -> np.ndarray:
        """Return the rows that `compute` returns for blocks of the queries and of `more`."""
        size = _NUMBERS // max(1, len(self.items))  # type: ignore[arg-type]
        return np.concatenate(
            [
                compute(queries[block], *(rows[block] for rows in more))
                for block in slices(len(queries), size)
            ]
        )

    def mask(self, queries: np.ndarray) -> BoolArray:
        """Return whether all items `[b, m]` are positives of queries `[b]`."""
        labels = keras.ops.convert_to_tensor(self.labels[queries])
        positive = self.relation.compare(labels, self.items)[0]
        return self._without_own(positive, queries)

    def _gains(self, queries: np.ndarray) -> Float32Array:
        labels = keras.ops.convert_to_tensor(self.labels[queries])
        gains = keras.ops.cast(self.relation.gains(labels, self.items), "float32")
        return self._without_own(gains, queries)

    def _without_own(self, tensor: Tensor, queries: np.ndarray) -> np.ndarray:
        values = np.array(keras.ops.convert_to_numpy(tensor))
        if self.own_rows:
            values[np.arange(len(queries)), queries] = 0
        return values


Relevance: TypeAlias = SameClassRelevance | RelationRelevance


def _taken(
    of_all: Callable[[np.ndarray], np.ndarray], queries: np.ndarray, found: np.ndarray
) -> np.ndarray:
    return np.take_along_axis(of_all(queries), found, axis=1)


def checked_sets(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    gallery: npt.ArrayLike | None,
    gallery_labels: npt.ArrayLike | None,
    metric: Metric,
) -> tuple[Float32Array, Float32Array, Int64Array, Int64Array]:
    """Return queries and items as finite float32 rows, and their class numbers.

    Returns:
        `(queries, items, codes, item_codes)`. Without a gallery, the items are the queries:
        `items is queries`.

    Raises:
        ValueError: As in `recall_at_k`, except for K.
    """
    check_together(gallery, gallery_labels)
    queries, items = rows_of_sets(embeddings, gallery, metric)
    classes = checked_labels("labels", labels, len(queries))
    if gallery_labels is None:
        codes = class_numbers(classes)
        return queries, items, codes, codes
    item_classes = checked_labels("gallery_labels", gallery_labels, len(items))
    joined = joined_labels([("labels", classes), ("gallery_labels", item_classes)])
    both = class_numbers(joined)
    return queries, items, both[: len(queries)], both[len(queries) :]


def checked_labels(name: str, given: npt.ArrayLike, rows: int) -> np.ndarray:
    """Return labels as an array `[rows]` of integers, strings, or bytes, or raise `ValueError`."""
    labels = plain_labels(name, given)
    if labels.shape != (rows,):
        owner = "gallery" if name == "gallery_labels" else "embeddings"
        raise shape_error(name, f"of shape [{rows}], one for each row of {owner}", labels)
    return labels


def unit_embeddings(
    embeddings: npt.ArrayLike, labels: npt.ArrayLike
) -> tuple[Float32Array, np.ndarray]:
    """Return l2-normalized embeddings float32 `[n, d]` and labels `[n]`, or raise `ValueError`."""
    rows = finite_rows(embeddings, "embeddings")
    return normalized(rows), checked_labels("labels", labels, len(rows))


def class_numbers(labels: np.ndarray) -> Int64Array:
    """Convert labels `[n]` of one kind to class numbers from 0, int64 `[n]`."""
    return np.unique(labels, return_inverse=True)[1]


def check_together(gallery: npt.ArrayLike | None, gallery_labels: npt.ArrayLike | None) -> None:
    """Raise `ValueError` if only one of the two is set."""
    if (gallery is None) != (gallery_labels is None):
        missing = "gallery" if gallery is None else "gallery_labels"
        raise ArgumentError(
            f"gallery and gallery_labels must be set together, but got {missing}=None."
        )
