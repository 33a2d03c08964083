"""Scores of the k nearest neighbors of each query."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_dml._common.checks import check_choice, check_whole
from keras_dml._common.errors import argument_error

__all__ = ["BNDCG", "MapAtK", "PrecisionAtK", "RecallAtK", "RetrievalMetric"]


class RetrievalMetric:
    """A score of each query's neighbors, averaged. A subclass defines `per_query`.

    Examples:
        >>> hits = np.array([[False, True], [False, False]])
        >>> float(RecallAtK(k=2).compute(query_labels=np.array([0, 1]), match_mask=hits))
        0.5

    Args:
        name: Name in results, to which `@k` is appended. Empty: the name of the score.
        k: Number of neighbors.
        distance_threshold: Largest distance of a match. Only `BNDCG` uses it.
        average: `"micro"`: mean over queries. `"macro"`: mean over classes.
        drop_closest_lookup: Whether to skip the nearest neighbor, for queries in the index.
    """

    default_name = ""
    averages: tuple[str, ...] = ("micro", "macro")

    def __init__(
        self,
        name: str = "",
        k: int = 5,
        distance_threshold: float = math.inf,
        average: str = "micro",
        drop_closest_lookup: bool = False,
    ) -> None:
        self._name = name or self.default_name
        self.k = check_whole("k", k, least=1)
        self.distance_threshold = distance_threshold
        self.average = check_choice("average", average, self.averages)
        self.drop_closest_lookup = drop_closest_lookup

    @property
    def name(self) -> str:
        """Name in results."""
        limit = self.distance_threshold
        suffix = f" : distance_threshold@{limit}" if limit and limit != math.inf else ""
        return f"{self._name}@{self.k}{suffix}"

    def per_query(self, labels: np.ndarray, hits: np.ndarray, distances: Any) -> np.ndarray:
        """Return the score of each query.

        Args:
            labels: Class ids `[q]`.
            hits: Which neighbors have the query's label, floats `[q, m]`.
            distances: Distances `[q, m]`, or None.
        """
        raise NotImplementedError

    def compute(
        self, *, query_labels: Any, match_mask: Any, lookup_distances: Any = None, **kwargs: Any
    ) -> np.float32:
        """Return the average score.

        Args:
            query_labels: Class ids `[q]`.
            match_mask: Which neighbors have the query's label, bool `[q, m]`, m at least k.
            lookup_distances: Distances `[q, m]`.
            kwargs: Ignored.

        Raises:
            ValueError: There are fewer than k neighbors, or the numbers of rows differ.
        """
        labels, hits = np.reshape(query_labels, -1), np.asarray(match_mask, "float32")
        if len(labels) != len(hits) or hits.shape[1] < self.k:
            wanted = f"of shape [{len(labels)}, m] with m at least k={self.k}"
            raise argument_error("match_mask", wanted, hits)
        scores = self.per_query(labels, hits, lookup_distances)
        if self.average == "macro":
            scores = np.array([scores[labels == label].mean() for label in np.unique(labels)])
        return np.float32(scores.mean())

    def __str__(self) -> str:
        return self.name


class RecallAtK(RetrievalMetric):
    """The share of queries with a hit among k neighbors.

    Examples:
        >>> RecallAtK(k=3).name
        'recall@3'
    """

    default_name = "recall"

    def per_query(self, labels: np.ndarray, hits: np.ndarray, distances: Any) -> np.ndarray:
        """Return 1 for queries with a hit, else 0."""
        start = int(self.drop_closest_lookup)
        return hits[:, start : start + self.k].max(axis=1)


class BNDCG(RetrievalMetric):
    """Normalized discounted cumulative gain of hits. The ideal ranking sorts only the k neighbors.

    Examples:
        >>> hits = np.array([[False, True]])
        >>> value = BNDCG(k=2).compute(query_labels=[0], match_mask=hits, lookup_distances=[[0, 1]])
        >>> round(float(value), 3)
        0.631
    """

    default_name = "ndcg"

    def per_query(self, labels: np.ndarray, hits: np.ndarray, distances: Any) -> np.ndarray:
        """Return the gain of each query divided by its largest possible gain."""
        start = int(self.drop_closest_lookup)
        near = np.asarray(distances) <= self.distance_threshold
        gains = (hits * near)[:, start : start + self.k]
        weights = 1.0 / np.log2(np.arange(gains.shape[1]) + 2.0)
        best = np.sort(gains, axis=1)[:, ::-1] @ weights
        return gains @ weights / np.where(best > 0, best, 1.0)


class PrecisionAtK(RetrievalMetric):
    """Hits among k neighbors, divided by k or by the size of the query's class.

    With `drop_closest_lookup`, neighbors 2 to k count, and sizes are reduced by 1.

    Examples:
        >>> PrecisionAtK(r={0: 2}, clip_at_r=True).name
        'precision'

    Args:
        r: Class id to number of relevant items. None: k for each class. If smaller than k, the
            score can exceed 1.
        clip_at_r: Whether only the first r neighbors count.
        name: Name in results.
        kwargs: As in `RetrievalMetric`.
    """

    default_name = "precision"

    def __init__(
        self,
        r: Mapping[int, int] | None = None,
        clip_at_r: bool = False,
        name: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(name, **kwargs)
        self.r, self.clip_at_r = r, clip_at_r

    @property
    def name(self) -> str:
        """Name in results."""
        return self._name if self.clip_at_r else super().name

    def gains(self, hits: np.ndarray) -> np.ndarray:
        """Return the gain of each neighbor, `[q, m]`."""
        return hits

    def per_query(self, labels: np.ndarray, hits: np.ndarray, distances: Any) -> np.ndarray:
        """Return the sum of gains divided by the number of relevant items."""
        start = int(self.drop_closest_lookup)
        sizes = [self.k if self.r is None else self.r.get(int(one), 0) for one in labels]
        relevant = np.maximum(np.array(sizes) - start, 0)
        gains = self.gains(hits[:, start : self.k])
        if self.clip_at_r:
            gains = gains * (np.arange(gains.shape[1]) < relevant[:, None])
        return np.where(relevant > 0, gains.sum(axis=1) / np.maximum(relevant, 1), 0.0)


class MapAtK(PrecisionAtK):
    """Mean average precision. With `clip_at_r` and class sizes, it is MAP@R.

    Examples:
        >>> MapAtK(r={0: 2}, k=2).name
        'map@2'

    Args:
        r, clip_at_r, name, kwargs: As in `PrecisionAtK`. Only `average="micro"` is supported.
    """

    default_name = "map"
    averages = ("micro",)

    def gains(self, hits: np.ndarray) -> np.ndarray:
        """Return the precision at each hit."""
        return hits * np.cumsum(hits, axis=1) / np.arange(1, hits.shape[1] + 1)
