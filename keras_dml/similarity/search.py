"""Exact search for the nearest embeddings."""

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_dml._common.errors import argument_error
from keras_dml.similarity import distances
from keras_dml.similarity._names import from_name
from keras_dml.similarity.distances import Distance

__all__ = ["FaissSearch", "LinearSearch", "NMSLibSearch", "Search", "make_search"]

# Most numbers in memory for distances without an index, and for Manhattan differences.
_BLOCK = 2**24


class Search:
    """The interface of searches. A subclass defines all methods of `LinearSearch`.

    A loaded index adds its embeddings to an empty search again.

    Examples:
        >>> issubclass(LinearSearch, Search)
        True

    Args:
        distance: A distance or its name.
        dim: Length of an embedding.
        verbose: Unused.
        name: Name of the search.

    Raises:
        ValueError: The distance is a similarity.
    """

    def __init__(
        self, distance: Distance | str, dim: int, verbose: int = 0, name: str | None = None,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        self.distance, self.dim = distances.get(distance), dim
        self.name = name or type(self).__name__
        if self.distance.name == "inner_product":
            advice = "A similarity would sort the farthest first."
            name = self.distance.name
            raise argument_error("distance", "a distance such as 'cosine'", name, advice=advice)


class LinearSearch(Search):
    """Exact search. For every distance, embeddings and queries are l2-normalized first.

    Cosine and Euclidean distances use `keras_dml.retrieval.ExactIndex`.

    Examples:
        >>> search = LinearSearch("cosine", dim=2)
        >>> search.batch_add(np.eye(2), idxs=[0, 1])
        >>> search.batch_lookup(np.array([[2.0, 0.0]]), k=2)
        ([[0, 1]], [[0.0, 1.0]])

    Args:
        distance, dim, verbose, name: As in `Search`.
    """

    def __init__(
        self, distance: Distance | str, dim: int, verbose: int = 0, name: str | None = "linear",
        **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(distance, dim, verbose, name)
        self.reset()

    def reset(self) -> None:
        """Remove all embeddings."""
        self._index: Any = None
        self._rows = np.zeros((0, 0), "float32")
        self._idxs: list[int] = []

    def batch_add(
        self, embeddings: Any, idxs: Sequence[int], verbose: int = 1, **kwargs: Any
    ) -> None:
        """Add embeddings with their numbers."""
        from keras_dml.retrieval.exact import ExactIndex

        rows = _unit(embeddings)
        metric = {"cosine": "cosine", "euclidean": "l2"}.get(self.distance.name)
        if not len(rows):
            return
        if metric is None:
            self._rows = np.concatenate([self._rows, rows]) if self._idxs else rows
            self._idxs += idxs
        elif self._index is None:
            self._index = ExactIndex(rows, metric, np.asarray(idxs))  # type: ignore[arg-type]
        else:
            self._index.add(rows, np.asarray(idxs))

    def batch_lookup(
        self, embeddings: Any, k: int = 5
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Return the numbers and the distances for each query, nearest first."""
        queries = _unit(embeddings)
        if self._index is not None:
            idxs, scores = self._index.search(queries, min(k, self._index.num_items))
            if self.distance.name == "cosine":
                scores = np.maximum(1.0 - scores, 0.0)
            return idxs.tolist(), scores.tolist()
        if not self._idxs:
            return [[] for _ in queries], [[] for _ in queries]
        numbers, places, found = np.array(self._idxs), [], []
        block = max(1, _BLOCK // self._rows.size)
        for start in range(0, len(queries), block):
            apart = self.distance(queries[start : start + block], self._rows)
            apart = keras.ops.convert_to_numpy(apart)
            order = np.argsort(apart, axis=1, kind="stable")[:, :k]
            places += numbers[order].tolist()
            found += np.take_along_axis(apart, order, axis=1).tolist()
        return places, found


class NMSLibSearch(LinearSearch):
    """An exact search under the name of an approximate search. Warns.

    Examples:
        >>> issubclass(NMSLibSearch, LinearSearch)
        True

    Args:
        distance, dim: As in `Search`. Other arguments are ignored.
    """

    def __init__(self, distance: Distance | str, dim: int, *args: Any, **kwargs: Any) -> None:
        name = type(self).__name__
        warnings.warn(f"{name} searches exactly, with normalized embeddings.", stacklevel=2)
        super().__init__(distance, dim)


class FaissSearch(NMSLibSearch):
    """An exact search under the name of an approximate search. Warns.

    For approximate search, use `keras_dml.retrieval.ScannIndex`.

    Examples:
        >>> issubclass(FaissSearch, LinearSearch)
        True

    Args:
        distance, dim: As in `Search`. Other arguments are ignored.
    """


_SEARCHES = {"linear": LinearSearch, "nmslib": NMSLibSearch, "faiss": FaissSearch}


def make_search(search: Search | str, distance: Distance | str, dim: int) -> Search:
    """Return a search from an object or a name.

    Examples:
        >>> make_search("linear", "cosine", 2).name
        'linear'

    Raises:
        ValueError: The name is unknown.
    """
    known = {name: functools.partial(kind, distance, dim) for name, kind in _SEARCHES.items()}
    return from_name("search", search, Search, known)


def _unit(embeddings: Any) -> np.ndarray:
    rows = np.asarray(keras.ops.convert_to_numpy(embeddings), "float32")
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1.0)
