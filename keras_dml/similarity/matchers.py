"""Rules that derive one label and one distance from the neighbors of each query."""

from typing import Any

import numpy as np

from keras_dml._common.errors import ArgumentError
from keras_dml._common.exports import public_names
from keras_dml.similarity._names import from_name


class ClassificationMatch:
    """A rule from neighbors to a match. A subclass defines `derive_match`.

    Examples:
        >>> matcher = MatchNearest()
        >>> matcher.compile(distance_thresholds=[0.1, 0.5])
        >>> matcher.compute_count(np.array([7]), np.array([[7]]), np.array([[0.3]]))
        >>> matcher.tp, matcher.fn
        (array([0., 1.], dtype=float32), array([1., 0.], dtype=float32))

    Attributes:
        tp, fp, tn, fn: Counts for each threshold, after `compute_count`.
        count: Number of queries.
    """

    def __init__(self) -> None:
        self.compile()

    def compile(self, distance_thresholds: Any = None) -> None:
        """Set the thresholds. None: infinity."""
        thresholds = [np.inf] if distance_thresholds is None else distance_thresholds
        self.distance_thresholds = np.sort(np.asarray(thresholds, "float32"))

    def derive_match(self, lookup_labels: Any, lookup_distances: Any) -> tuple[Any, Any]:
        """Return the label and the distance of each query, `[q]` each, from `[q, k]` each."""
        raise NotImplementedError

    def compute_count(self, query_labels: Any, lookup_labels: Any, lookup_distances: Any) -> None:
        """Count matches for each threshold.

        Raises:
            ValueError: The neighbors are not `[q, k]`, or the numbers of queries differ.
        """
        truth, labels = np.reshape(query_labels, -1), np.asarray(lookup_labels)
        distances = np.asarray(lookup_distances)
        if labels.ndim != 2 or labels.shape != distances.shape or len(truth) != len(labels):
            raise ArgumentError(
                "lookup_labels and lookup_distances must have the shape [len(query_labels), k], "
                f"but got {labels.shape} and {distances.shape} for {len(truth)} queries."
            )
        labels, distances = map(np.reshape, self.derive_match(labels, distances), [(-1, 1)] * 2)
        right = labels == truth[:, None]
        near = distances <= self.distance_thresholds
        pairs = (right & near, ~right & near, ~right & ~near, right & ~near)
        self.tp, self.fp, self.tn, self.fn = (np.sum(one, 0, dtype="float32") for one in pairs)
        self.count = len(truth)


class MatchNearest(ClassificationMatch):
    """Label and distance of the nearest neighbor.

    Examples:
        >>> MatchNearest().derive_match(np.array([[7, 2]]), np.array([[0.1, 0.2]]))
        (array([7]), array([0.1]))
    """

    def derive_match(self, lookup_labels: Any, lookup_distances: Any) -> tuple[Any, Any]:
        """Return the first column of each array."""
        return lookup_labels[:, 0], lookup_distances[:, 0]


class MatchMajorityVote(ClassificationMatch):
    """The most frequent label, and the mean of the k distances.

    If labels are equally frequent, the label of the nearest neighbor among them wins.

    Examples:
        >>> distances = np.array([[0.1, 0.2, 0.3, 0.4]])
        >>> MatchMajorityVote().derive_match(np.array([[7, 2, 2, 7]]), distances)
        (array([7]), array([0.25]))
    """

    def derive_match(self, lookup_labels: Any, lookup_distances: Any) -> tuple[Any, Any]:
        """Return the majority and the mean distance."""
        labels = np.asarray(lookup_labels)
        votes = (labels[:, :, None] == labels[:, None, :]).sum(axis=-1)
        first = np.argmax(votes, axis=1)[:, None]  # neighbors are in the order of their distances
        return np.take_along_axis(labels, first, 1)[:, 0], np.mean(lookup_distances, axis=1)


_MATCHERS = {"match_nearest": MatchNearest, "match_majority_vote": MatchMajorityVote}


def make_classification_matcher(matcher: ClassificationMatch | str) -> ClassificationMatch:
    """Return a matcher from an object or a name.

    Examples:
        >>> isinstance(make_classification_matcher("match_nearest"), MatchNearest)
        True

    Raises:
        ValueError: The name is unknown.
    """
    return from_name("matcher", matcher, ClassificationMatch, _MATCHERS)


__all__ = public_names(__name__)
