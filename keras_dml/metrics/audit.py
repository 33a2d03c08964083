"""Audit of a labeled set by nearest neighbors: label errors, outliers, and confused classes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keras_dml._common.blocks import slices
from keras_dml._common.checks import check_number, check_whole
from keras_dml._common.errors import ArgumentError, as_array
from keras_dml._common.extras import needing
from keras_dml._common.types import Float64Array, Int64Array
from keras_dml.metrics.relevance import checked_labels, class_numbers

# Number of rows whose neighbors are compared with each other at once: k² booleans per row.
_BLOCK = 4096


class LabelVotes(NamedTuple):
    """The votes of each row's neighbors for its label.

    Examples:
        >>> labels = np.array([0, 0, 0, 1, 1, 1])
        >>> neighbors = np.array([[1, 2], [0, 2], [0, 1], [4, 5], [3, 5], [0, 1]])
        >>> votes = label_votes(labels, neighbors)
        >>> votes.suggested
        array([0, 0, 0, 1, 1, 0])

    Attributes:
        self_confidence: float64 `[n]` in [0, 1], fraction of the votes for the row's label.
        class_confidence: float64 `[n]`, mean of `self_confidence` over all rows with the label.
        suggested: Labels `[n]`, the other label with the most votes. The row's label if all
            neighbors have it.
        suggested_confidence: float64 `[n]`, fraction of the votes for `suggested`.
    """

    self_confidence: Float64Array
    class_confidence: Float64Array
    suggested: np.ndarray
    suggested_confidence: Float64Array


class ConfusedClasses(NamedTuple):
    """Two labels whose rows are neighbors of each other.

    Examples:
        >>> ConfusedClasses("cup", "mug", share=0.25).share
        0.25

    Attributes:
        first, second: The two labels.
        share: float in [0, 1], the fraction of the votes of all rows of both labels for the other
            label.
    """

    first: object
    second: object
    share: float


def label_votes(labels: npt.ArrayLike, neighbors: npt.ArrayLike) -> LabelVotes:
    """Compute the leave-one-out votes of the nearest neighbors, the r-th with weight 1/r.

    With y the labels and n_r(i) the r-th nearest other row of row i,

        p_i(c) = Σ_r [y_{n_r(i)} = c] / r  /  Σ_r 1/r

    is the fraction of votes for label c, and `self_confidence` is p_i(y_i). Weights by rank do not
    depend on the scale of a model's similarities. Takes n·k² time, and memory for n·k numbers.

    Args:
        labels: Label of each row, `[n]`, as numbers or strings.
        neighbors: Row numbers `[n, k]`, nearest first, from `nearest_neighbors` (or approximate
            neighbors from an index). k can be 0.

    Returns:
        `LabelVotes`. Without neighbors, all confidences are 0.

    Raises:
        ValueError: The shapes do not match, or the neighbors are not row numbers.

    Examples:
        >>> z = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.1, 0.9], [0.8, 0.3]], "float32")
        >>> rows, _ = keras_dml.metrics.nearest_neighbors(z, k=1)
        >>> label_votes(np.array([0, 0, 1, 1, 1]), rows).suggested
        array([0, 0, 1, 1, 0])

    Reference: Dudani 1976, "The distance-weighted k-nearest-neighbor rule" (weights by rank);
    Northcutt, Jiang and Chuang 2021, "Confident learning", section 2 (self-confidence).
    """
    rows = _checked_neighbors(neighbors)
    given = checked_labels("labels", labels, len(rows))
    codes = class_numbers(given)
    own, best = np.zeros(len(rows)), np.zeros(len(rows))
    # Rows whose label is suggested.
    suggested = np.arange(len(rows))
    weights = _rank_weights(rows.shape[1])
    for block in slices(len(rows) if len(weights) else 0, _BLOCK):
        votes_of = codes[rows[block]]
        # The fraction of all votes for the label of each neighbor.
        shares = (votes_of[:, :, None] == votes_of[:, None, :]) @ weights
        is_own = votes_of == codes[block, None]
        own[block] = (is_own * weights).sum(axis=1)
        shares[is_own] = 0
        leader = shares.argmax(axis=1)[:, None]  # the nearest neighbor's label, among equal shares
        best[block] = np.take_along_axis(shares, leader, axis=1)[:, 0]
        leaders = np.take_along_axis(rows[block], leader, axis=1)[:, 0]
        suggested[block] = np.where(best[block] > 0, leaders, suggested[block])
    sizes = np.bincount(codes)
    means = np.bincount(codes, own) / sizes
    return LabelVotes(own, means[codes], given[suggested], best)


def label_errors(votes: LabelVotes, ratio: float = 0.1) -> Int64Array:
    """Find the rows whose label is probably wrong, most probable first.

    A row i is returned if p_i(y_i) < ratio · mean of p_j(y_j) over the rows j with the same label:
    its neighbors rarely vote for its label, although the label's other rows get votes. A label with
    one row, or without any votes, gives no information, and none of its rows is returned.

    Examples:
        >>> labels = np.array([0, 0, 0, 1, 1, 1])
        >>> neighbors = np.array([[1, 2], [0, 2], [0, 1], [4, 5], [3, 5], [0, 1]])
        >>> votes = label_votes(labels, neighbors)
        >>> label_errors(votes)
        array([5])

    Args:
        votes: Votes from `label_votes`.
        ratio: Number in (0, 1].

    Returns:
        Row numbers in order of increasing `self_confidence`. Ties are in order of decreasing
        `suggested_confidence`.

    Raises:
        ValueError: `ratio` is out of range.
    """
    ratio = check_number("ratio", ratio, above=0, most=1)
    rows = np.flatnonzero(votes.self_confidence < ratio * votes.class_confidence)
    order = np.lexsort((-votes.suggested_confidence[rows], votes.self_confidence[rows]))
    return rows[order]


def confused_classes(
    labels: npt.ArrayLike, neighbors: npt.ArrayLike, most: int = 20
) -> list[ConfusedClasses]:
    """Find the pairs of labels whose rows are most often neighbors of each other, by `label_votes`.

    share(a, b) = (Σ_{i∈a} p_i(b) + Σ_{i∈b} p_i(a)) / (n_a + n_b)

    Examples:
        >>> labels = np.array(["cup", "cup", "mug", "mug"])
        >>> neighbors = np.array([[1, 2], [0, 3], [3, 0], [2, 1]])
        >>> confused_classes(labels, neighbors)[0].share
        0.3333333333333333

    Args:
        labels: Label of each row, `[n]`.
        neighbors: Row numbers `[n, k]`, as in `label_votes`.
        most: Maximum number of pairs, at least 1.

    Returns:
        At most `most` instances of `ConfusedClasses` with a share above 0, highest first.

    Raises:
        ValueError: As in `label_votes`. Also if `most` is below 1.
    """
    rows = _checked_neighbors(neighbors)
    given = checked_labels("labels", labels, len(rows))
    most = check_whole("most", most, least=1)
    codes = class_numbers(given)
    sizes = np.bincount(codes)
    votes_of = codes[rows]
    other = votes_of != codes[:, None]
    own, voted = np.broadcast_to(codes[:, None], votes_of.shape)[other], votes_of[other]
    weights = np.broadcast_to(_rank_weights(rows.shape[1]), votes_of.shape)[other]
    names = np.minimum(own, voted) * len(sizes) + np.maximum(own, voted)
    pairs, places = np.unique(names, return_inverse=True)
    votes = np.bincount(places, weights)
    first, second = pairs // max(1, len(sizes)), pairs % max(1, len(sizes))
    shares = votes / (sizes[first] + sizes[second])
    _, where = np.unique(codes, return_index=True)
    order = np.argsort(-shares, kind="stable")[:most]
    return [
        ConfusedClasses(given[where[a]], given[where[b]], float(share))
        for a, b, share in zip(first[order], second[order], shares[order])
    ]


def outlier_scores(similarities: npt.ArrayLike) -> Float64Array:
    """Compute how much farther each row is from its neighbors than most rows are.

    With d_i = 1 - the mean similarity of row i to its k nearest other rows, and Q1, Q3 the
    quartiles of all d,

        score_i = (d_i - Q3) / (Q3 - Q1)

    Scores above 1.5 are outside Tukey's fence, regardless of the scale of a model's similarities.

    Examples:
        >>> similarities = np.array([[0.9, 0.8], [0.9, 0.85], [0.88, 0.8], [0.2, 0.1]])
        >>> int(np.argmax(outlier_scores(similarities)))
        3

    Args:
        similarities: Cosine similarities `[n, k]` to the nearest rows, from `nearest_neighbors`. k
            can be 0.

    Returns:
        float64 `[n]`. Without neighbors, all scores are 0. If more than half of all d are equal,
        the other scores are very large.

    Raises:
        ValueError: The array does not have two axes, or is not finite.

    Reference: Angiulli and Pizzuti 2002, "Fast outlier detection in high dimensional spaces" (the
    sum of the distances to the k nearest); Tukey 1977, "Exploratory data analysis", section 2D.
    """
    near = as_array("similarities", similarities)
    if near.ndim != 2 or near.dtype.kind not in "iuf" or not np.isfinite(near).all():
        raise ArgumentError(
            "similarities must be finite numbers [n, k], but got "
            f"{near.dtype} of shape {near.shape}."
        )
    if not near.size:
        return np.zeros(len(near))
    distances = 1 - near.mean(axis=1, dtype=np.float64)
    low, high = np.quantile(distances, [0.25, 0.75])
    # Similarities are float32, so smaller differences are rounding errors.
    return (distances - high) / max(high - low, 1e-6)


def duplicate_groups(pairs: npt.ArrayLike, count: int) -> Int64Array:
    """Find the groups of `count` rows that pairs connect, directly or indirectly.

    Examples:
        >>> duplicate_groups(np.array([[0, 1], [1, 3]]), 5)
        array([0, 0, 2, 0, 4])

    Args:
        pairs: Row numbers `[p, 2]`. p can be 0.
        count: Number of rows.

    Returns:
        int64 `[count]`: the lowest row number in each row's group. A row without pairs has its row
        number.

    Raises:
        ValueError: The pairs have another shape, or are not row numbers.
        MissingExtraError: SciPy is not installed.
    """
    edges = as_array("pairs", pairs)
    if not edges.size:
        return np.arange(count)
    if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype.kind not in "iu":
        raise ArgumentError(
            f"pairs must be row numbers [p, 2], but got {edges.dtype} of shape {edges.shape}."
        )
    _check_range("pairs", edges, count)
    with needing("run", "duplicate_groups"):
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components
    links = coo_array((np.ones(len(edges), bool), (edges[:, 0], edges[:, 1])), (count, count))
    _, groups = connected_components(links, directed=False)
    _, first, places = np.unique(groups, return_index=True, return_inverse=True)
    return first[places]


def _rank_weights(k: int) -> Float64Array:
    weights = 1 / np.arange(1, k + 1)
    return weights / max(weights.sum(), 1)


def _checked_neighbors(neighbors: npt.ArrayLike) -> Int64Array:
    rows = as_array("neighbors", neighbors)
    if rows.ndim != 2 or (rows.size and rows.dtype.kind not in "iu"):
        raise ArgumentError(
            f"neighbors must be row numbers [n, k], but got {rows.dtype} of shape {rows.shape}."
        )
    _check_range("neighbors", rows, len(rows))
    return rows.astype(np.int64, copy=False)


def _check_range(name: str, rows: np.ndarray, count: int) -> None:
    if rows.size and (rows.min() < 0 or rows.max() >= count):
        raise ArgumentError(
            f"{name} must be row numbers from 0 to {count - 1}, but got numbers from {rows.min()} "
            f"to {rows.max()}."
        )
