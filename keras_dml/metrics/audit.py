"""What its neighbors tell of a labeled set: labels that are wrong, outliers, confused classes."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keras_dml.checks import as_array, check_number, check_whole
from keras_dml.errors import ArgumentError
from keras_dml.extras import needing
from keras_dml.metrics.recall import checked_labels, class_numbers

# Rows whose neighbors are compared with each other at once: k² booleans each.
_BLOCK = 4096


class LabelVotes(NamedTuple):
    """What the neighbors of each row say of its label.

    Examples:
        >>> labels = np.array([0, 0, 0, 1, 1, 1])
        >>> neighbors = np.array([[1, 2], [0, 2], [0, 1], [4, 5], [3, 5], [0, 1]])
        >>> votes = label_votes(labels, neighbors)
        >>> votes.suggested
        array([0, 0, 0, 1, 1, 0])

    Attributes:
        self_confidence: float64 `[n]` in [0, 1], the share of their votes for the row's own label.
        class_confidence: float64 `[n]`, the mean of that over all rows of the label.
        suggested: labels `[n]`, that of the others with most votes; the own one where all
            neighbors have it.
        suggested_confidence: float64 `[n]`, its share of the votes.
    """

    self_confidence: npt.NDArray[np.float64]
    class_confidence: npt.NDArray[np.float64]
    suggested: np.ndarray
    suggested_confidence: npt.NDArray[np.float64]


class ConfusedClasses(NamedTuple):
    """Two labels whose rows are each other's neighbors.

    Examples:
        >>> ConfusedClasses("cup", "mug", share=0.25).share
        0.25

    Attributes:
        first, second: the labels.
        share: float in [0, 1], of the votes of all rows of the two, those for the other label.
    """

    first: object
    second: object
    share: float


def label_votes(labels: npt.ArrayLike, neighbors: npt.ArrayLike) -> LabelVotes:
    """Leave-one-out votes of the nearest neighbors, the r-th with weight 1/r.

    With y the labels and n_r(i) the r-th nearest other row of row i,

        p_i(c) = Σ_r [y_{n_r(i)} = c] / r  /  Σ_r 1/r

    is the share of label c; `self_confidence` is p_i(y_i). Weights by rank need no scale, whatever
    similarities a model gives. Takes n·k² time and memory for n·k numbers.

    Args:
        labels: of each row, `[n]`: numbers or strings.
        neighbors: row numbers `[n, k]`, nearest first, as `nearest_neighbors` gives them (from an
            index, approximate ones do); k may be 0.

    Returns:
        `LabelVotes`; without neighbors all confidences are 0.

    Raises:
        ValueError: shapes that do not fit, neighbors that are no row numbers.

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
    suggested = np.arange(len(rows))  # rows whose label it is
    for block, shares, votes_of in _vote_blocks(codes, rows):
        is_own = votes_of == codes[block, None]
        own[block] = (is_own * _rank_weights(rows.shape[1])).sum(axis=1)
        shares[is_own] = 0
        leader = shares.argmax(axis=1)[:, None]  # of equal shares that of the nearest
        best[block] = np.take_along_axis(shares, leader, axis=1)[:, 0]
        leaders = np.take_along_axis(rows[block], leader, axis=1)[:, 0]
        suggested[block] = np.where(best[block] > 0, leaders, suggested[block])
    sizes = np.bincount(codes)
    means = np.bincount(codes, own) / sizes
    return LabelVotes(own, means[codes], given[suggested], best)


def label_errors(votes: LabelVotes, ratio: float = 0.1) -> npt.NDArray[np.int64]:
    """Rows whose label is probably wrong, the most probable first.

    Those with p_i(y_i) < ratio · mean of p_j(y_j) over the rows j of the same label: their
    neighbors hardly vote for a label that its other rows do get. A label with one row, or one
    that neighbors never vote for, tells nothing, and none of its rows is named.

    Examples:
        >>> labels = np.array([0, 0, 0, 1, 1, 1])
        >>> neighbors = np.array([[1, 2], [0, 2], [0, 1], [4, 5], [3, 5], [0, 1]])
        >>> votes = label_votes(labels, neighbors)
        >>> label_errors(votes)
        array([5])

    Args:
        votes: of `label_votes`.
        ratio: in (0, 1].

    Returns:
        Row numbers by `self_confidence`, the lowest first; equal ones by `suggested_confidence`,
        the highest first.

    Raises:
        ValueError: ratio out of range.
    """
    ratio = check_number("ratio", ratio, above=0, most=1)
    rows = np.flatnonzero(votes.self_confidence < ratio * votes.class_confidence)
    order = np.lexsort((-votes.suggested_confidence[rows], votes.self_confidence[rows]))
    return rows[order]


def confused_classes(
    labels: npt.ArrayLike, neighbors: npt.ArrayLike, most: int = 20
) -> list[ConfusedClasses]:
    """The pairs of labels whose rows are each other's neighbors most, by `label_votes`.

    share(a, b) = (Σ_{i in a} p_i(b) + Σ_{i in b} p_i(a)) / (n_a + n_b)

    Examples:
        >>> labels = np.array(["cup", "cup", "mug", "mug"])
        >>> neighbors = np.array([[1, 2], [0, 3], [3, 0], [2, 1]])
        >>> confused_classes(labels, neighbors)[0].share
        0.3333333333333333

    Args:
        labels: of each row, `[n]`.
        neighbors: row numbers `[n, k]`, as for `label_votes`.
        most: how many pairs, at least 1.

    Returns:
        At most so many `ConfusedClasses` with a share above 0, the highest first.

    Raises:
        ValueError: as `label_votes`; `most` below 1.
    """
    rows = _checked_neighbors(neighbors)
    given = checked_labels("labels", labels, len(rows))
    most = check_whole("most", most, least=1)
    codes = class_numbers(given)
    sizes = np.bincount(codes)
    pairs: np.ndarray = np.empty(0, np.int64)
    votes: np.ndarray = np.empty(0)
    weights = _rank_weights(rows.shape[1])
    for block, _, votes_of in _vote_blocks(codes, rows):
        own = np.broadcast_to(codes[block, None], votes_of.shape)
        other = votes_of != own
        low, high = np.minimum(own, votes_of)[other], np.maximum(own, votes_of)[other]
        new = np.broadcast_to(weights, votes_of.shape)[other]
        pairs, places = np.unique(
            np.concatenate([pairs, low * len(sizes) + high]), return_inverse=True
        )
        votes = np.bincount(places, np.concatenate([votes, new]), minlength=len(pairs))
    first, second = pairs // max(1, len(sizes)), pairs % max(1, len(sizes))
    shares = votes / (sizes[first] + sizes[second])
    _, where = np.unique(codes, return_index=True)
    order = np.argsort(-shares, kind="stable")[:most]
    return [
        ConfusedClasses(given[where[a]], given[where[b]], float(share))
        for a, b, share in zip(first[order], second[order], shares[order])
    ]


def outlier_scores(similarities: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """How much farther each row lies from its neighbors than rows usually do.

    With d_i = 1 - the mean similarity of row i to its k nearest other rows, and Q1, Q3 the
    quartiles of all d,

        score_i = (d_i - Q3) / (Q3 - Q1)

    so that scores above 1.5 lie beyond Tukey's fence, whatever similarities a model gives.

    Examples:
        >>> similarities = np.array([[0.9, 0.8], [0.9, 0.85], [0.88, 0.8], [0.2, 0.1]])
        >>> int(np.argmax(outlier_scores(similarities)))
        3

    Args:
        similarities: cosine similarities `[n, k]` to the nearest, as `nearest_neighbors` gives
            them; k may be 0.

    Returns:
        float64 `[n]`; without neighbors all 0. Where more than half of all d are the same, the
        others' scores are very large.

    Raises:
        ValueError: not of two axes, or not finite.

    Reference: Angiulli and Pizzuti 2002, "Fast outlier detection in high dimensional spaces" (the
    sum of the distances to the k nearest); Tukey 1977, "Exploratory data analysis", section 2D.
    """
    near = as_array("similarities", similarities)
    if near.ndim != 2 or near.dtype.kind not in "iuf" or not np.isfinite(near).all():
        raise ArgumentError(
            "similarities must be finite numbers [n, k]. "
            f"Received: {near.dtype} of shape {near.shape}"
        )
    if not near.size:
        return np.zeros(len(near))
    distances = 1 - near.mean(axis=1, dtype=np.float64)
    low, high = np.quantile(distances, [0.25, 0.75])
    # Similarities are float32: what differs by less is the same.
    return (distances - high) / max(high - low, 1e-6)


def duplicate_groups(pairs: npt.ArrayLike, count: int) -> npt.NDArray[np.int64]:
    """Which of `count` rows hang together by pairs, directly or through others.

    Examples:
        >>> duplicate_groups(np.array([[0, 1], [1, 3]]), 5)
        array([0, 0, 2, 0, 4])

    Args:
        pairs: row numbers `[p, 2]`; p may be 0.
        count: how many rows there are.

    Returns:
        int64 `[count]`: for each row the lowest row number of its group, for a row of no pair its
        own.

    Raises:
        ValueError: pairs of another shape, or no row numbers.
        MissingExtraError: SciPy is not installed.
    """
    edges = as_array("pairs", pairs)
    if not edges.size:
        return np.arange(count)
    if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype.kind not in "iu":
        raise ArgumentError(
            f"pairs must be row numbers [p, 2]. Received: {edges.dtype} of shape {edges.shape}"
        )
    _check_range("pairs", edges, count)
    with needing("run", "duplicate_groups"):
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components
    links = coo_array((np.ones(len(edges), bool), (edges[:, 0], edges[:, 1])), (count, count))
    _, groups = connected_components(links, directed=False)
    _, first, places = np.unique(groups, return_index=True, return_inverse=True)
    return first[places]


def _vote_blocks(
    codes: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
) -> Iterator[tuple[slice, npt.NDArray[np.float64], npt.NDArray[np.int64]]]:
    """Yields (slice of the rows, shares `[b, k]`, codes `[b, k]`): of each neighbor the share of
    all votes that its label has, and its label."""
    k = rows.shape[1]
    weights = _rank_weights(k)
    for start in range(0, len(rows) if k else 0, _BLOCK):
        block = slice(start, min(start + _BLOCK, len(rows)))
        votes_of = codes[rows[block]]
        same = votes_of[:, :, None] == votes_of[:, None, :]
        yield block, same @ weights, votes_of


def _rank_weights(k: int) -> npt.NDArray[np.float64]:
    weights = 1 / np.arange(1, k + 1)
    return weights / max(weights.sum(), 1)


def _checked_neighbors(neighbors: npt.ArrayLike) -> npt.NDArray[np.int64]:
    rows = as_array("neighbors", neighbors)
    if rows.ndim != 2 or (rows.size and rows.dtype.kind not in "iu"):
        raise ArgumentError(
            f"neighbors must be row numbers [n, k]. Received: {rows.dtype} of shape {rows.shape}"
        )
    _check_range("neighbors", rows, len(rows))
    return rows.astype(np.int64, copy=False)


def _check_range(name: str, rows: np.ndarray, count: int) -> None:
    if rows.size and (rows.min() < 0 or rows.max() >= count):
        raise ArgumentError(
            f"{name} must be row numbers in 0..{count - 1}. "
            f"Received: numbers from {rows.min()} to {rows.max()}"
        )
