"""Label errors, outliers, confused classes, and groups: comparison with loops, and edge cases."""

import itertools

import numpy as np
import pytest

from keras_dml import metrics
from keras_dml._common.errors import ArgumentError

RNG = np.random.default_rng(0)
EMBEDDINGS = RNG.normal(size=(60, 5)) + 3 * np.repeat(np.eye(4, 5), 15, axis=0)
LABELS = np.repeat(["apple", "bean", "corn", "date"], 15)
LABELS[[3, 20]] = "date"
NEIGHBORS, SIMILARITIES = metrics.nearest_neighbors(EMBEDDINGS, 7)


CLASSES = np.unique(LABELS)
OWN = LABELS[:, None] == CLASSES
# The votes on each row for each class. A neighbor's vote is 1 / its rank.
RANKED = 1 / np.arange(1, 8)
VOTES = np.array([[RANKED[LABELS[near] == label].sum() for label in CLASSES] for near in NEIGHBORS])
VOTES /= RANKED.sum()


def test_votes_equal_their_definition():
    found = metrics.label_votes(LABELS, NEIGHBORS)
    np.testing.assert_allclose(found.self_confidence, VOTES[OWN], atol=1e-12)
    best = np.where(OWN, 0, VOTES).max(axis=1)
    np.testing.assert_allclose(found.suggested_confidence, best, atol=1e-12)
    suggested = VOTES[found.suggested[:, None] == CLASSES]
    np.testing.assert_allclose(suggested, np.where(best > 0, best, VOTES[OWN]))
    means = [VOTES[OWN][label == LABELS].mean() for label in LABELS]
    np.testing.assert_allclose(found.class_confidence, means)


def test_label_errors_are_below_their_class():
    votes = metrics.label_votes(LABELS, NEIGHBORS)
    for ratio in (0.1, 0.5, 1):
        found = metrics.label_errors(votes, ratio)
        below = votes.self_confidence < ratio * votes.class_confidence
        assert sorted(found) == np.flatnonzero(below).tolist()
        assert (np.diff(votes.self_confidence[found]) >= 0).all()
    assert {3, 20} <= set(metrics.label_errors(votes))
    assert votes.suggested[[3, 20]].tolist() == ["apple", "bean"]


def test_a_label_without_votes_of_neighbors():
    labels = np.array([0, 0, 0, 0, 2**40])  # a label with a single row
    rows, _ = metrics.nearest_neighbors(EMBEDDINGS[:5], 3)
    votes = metrics.label_votes(labels, rows)
    assert votes.self_confidence[4] == 0 and votes.suggested[4] == 0
    assert not len(metrics.label_errors(votes))
    # Labels that disagree with their neighbors everywhere.
    pairs = metrics.label_votes([7, 8, 7, 8], [[1], [2], [3], [0]])
    assert pairs.suggested.tolist() == [8, 7, 8, 7]
    assert not len(metrics.label_errors(pairs, ratio=1))


def test_confused_classes_equal_their_definition():
    expected = {}
    for (i, first), (j, second) in itertools.combinations(enumerate(CLASSES), 2):
        votes = VOTES[first == LABELS, j].sum() + VOTES[second == LABELS, i].sum()
        if votes:
            expected[first, second] = votes / np.isin(LABELS, [first, second]).sum()
    found = metrics.confused_classes(LABELS, NEIGHBORS)
    assert {(each.first, each.second): each.share for each in found} == pytest.approx(expected)
    ordered = sorted(expected.values(), reverse=True)
    assert [each.share for each in found] == pytest.approx(ordered)
    assert metrics.confused_classes(LABELS, NEIGHBORS, most=2) == found[:2]


def test_outliers_are_beyond_the_fence():
    scores = metrics.outlier_scores(SIMILARITIES)
    distances = [sum(1 - float(s) for s in row) / len(row) for row in SIMILARITIES]
    low, high = np.percentile(distances, [25, 75])
    np.testing.assert_allclose(scores, [(d - high) / (high - low) for d in distances], rtol=1e-6)
    far = np.concatenate([EMBEDDINGS, -np.ones((1, 5))])
    _, near = metrics.nearest_neighbors(far, 7)
    assert metrics.outlier_scores(near).argmax() == 60
    assert metrics.outlier_scores(near)[60] > 1.5


def test_groups_are_connected_components():
    pairs = [[3, 1], [7, 3], [8, 9], [9, 8]]
    assert metrics.duplicate_groups(pairs, 11).tolist() == [0, 1, 2, 1, 4, 5, 6, 1, 8, 8, 10]
    assert metrics.duplicate_groups([], 3).tolist() == [0, 1, 2]


def test_one_row_one_class_and_equal_rows():
    none = np.zeros((1, 0), int)
    assert metrics.label_votes(["a"], none).suggested.tolist() == ["a"]
    assert metrics.confused_classes(["a"], none) == []
    assert metrics.outlier_scores(none).tolist() == [0]
    one_class = metrics.label_votes(np.zeros(60, int), NEIGHBORS)
    assert (one_class.self_confidence > 1 - 1e-12).all()
    assert not len(metrics.label_errors(one_class))
    rows, near = metrics.nearest_neighbors(np.ones((30, 4)), 5)
    assert not (metrics.outlier_scores(near) > 1.5).any()
    assert metrics.label_votes(np.arange(30) % 2, rows).self_confidence.max() <= 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.label_votes(LABELS[:5], NEIGHBORS), r"labels must be of shape \[60\]"),
        (lambda: metrics.label_votes(LABELS, NEIGHBORS + 60), "from 0 to 59, but got numbers from"),
        (lambda: metrics.label_votes(LABELS, SIMILARITIES), "row numbers .* but got float32"),
        (lambda: metrics.confused_classes(LABELS, [1, 2]), r"but got int64 of shape \(2,\)"),
        (lambda: metrics.confused_classes(LABELS, NEIGHBORS, 0), "most must be"),
        (lambda: metrics.label_errors(metrics.label_votes(LABELS, NEIGHBORS), 0), "ratio must be"),
        (lambda: metrics.outlier_scores([[np.nan]]), "must be finite"),
        (lambda: metrics.outlier_scores([["a"]]), "must be finite numbers"),
        (lambda: metrics.duplicate_groups([[0, 5]], 5), "pairs must be row numbers from 0 to 4"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()
