"""Thresholds and error rates over all pairs, and open-set identification, against loops."""

import itertools

import numpy as np
import pytest
from retrieval_sets import awkward_set

from keras_dml._common.types import METRICS
from keras_dml.metrics import (
    identification,
    pair_counts,
    pair_scores,
    pairs_needed,
    verification,
)
from keras_dml.metrics.pair_scores import PairScores


def naive_pairs(embeddings, labels, metric, drawn=None):
    """Return scores of the negative and the positive pairs, nearest first, by a float64 loop.

    A row counts as often as its class was `drawn`. Copies of a class are not negative pairs.
    """
    rows = np.asarray(embeddings, np.float32).astype(np.float64)
    kinds = ([], [])
    for i, j in itertools.combinations(range(len(rows)), 2):
        a, b = rows[i], rows[j]
        if metric == "l2":
            score = -np.float32(np.sqrt(((a - b) ** 2).sum()))
        else:
            lengths = np.sqrt((a**2).sum()) * np.sqrt((b**2).sum())
            score = np.float32(round(float((a * b).sum() / (lengths or 1)), 12))
        same, times = labels[i] == labels[j], 1
        if drawn is not None:
            times = drawn[labels[i]] * (1 if same else drawn[labels[j]])
        kinds[int(same)].extend([score] * times)
    return [np.sort(np.array(scores, np.float32))[::-1] for scores in kinds]


def naive_threshold(negative, positive, rate):
    """Return the highest score that must not match at a rate, and the next higher score."""
    values = np.unique(negative)
    matching = np.sum(negative >= values[:, None], axis=1)
    rejected = values[matching > rate * len(negative)].max()
    every = np.concatenate([negative, positive])
    return rejected, np.min(every[every > rejected], initial=np.inf)


def is_halfway(threshold, rejected, accepted):
    """Return whether a threshold is halfway between two scores, as far as float32 can be."""
    assert np.float32(threshold) == threshold
    if np.isinf(accepted):
        return rejected < threshold <= rejected + np.float32(1e-5)
    middle = np.float32((np.float64(rejected) + np.float64(accepted)) / 2)
    return threshold == (middle if middle > rejected else accepted)


def naive_equal_error(negative, positive):
    scores = np.unique(np.concatenate([negative, positive]))[::-1]
    false = np.mean(negative >= scores[:, None], axis=1)
    missed = np.mean(positive < scores[:, None], axis=1)
    rate = np.interp(0, np.append(-1, false - missed), np.append(0, false))
    return rate, scores[np.argmax(false >= missed)]


def sets():
    """Yield embeddings and labels that are difficult cases."""
    yield awkward_set()
    rng = np.random.default_rng(7)
    coarse = rng.integers(-2, 3, (70, 3)).astype(np.float64)  # most scores are ties
    yield coarse, rng.integers(0, 6, 70)
    yield np.zeros((60, 2)), np.arange(60) % 5
    yield 1e4 + rng.normal(size=(60, 4)), (np.arange(60) % 7) + 2**40  # far from the origin


RATES = (0.3, 1e-2, 0.05)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("number", range(4))
def test_it_agrees_with_a_loop_over_the_pairs(metric, number, monkeypatch):
    embeddings, labels = list(sets())[number]
    negative, positive = naive_pairs(embeddings, labels, metric)
    sign = 1 if metric == "cosine" else -1
    for sizes in ({}, {"_FEW": 1, "_HIGHEST": 5}):  # all pairs, and a sample of them
        monkeypatch.setattr(pair_scores, "_BLOCK", 32 if sizes else 7)
        for name, size in sizes.items():
            monkeypatch.setattr(pair_counts, name, size)
        found = verification(embeddings, labels, RATES, metric, replicates=2)
        assert (found.positive_pairs, found.negative_pairs) == (len(positive), len(negative))
        for rate, point in zip(RATES, found.points, strict=True):
            threshold = sign * point.threshold
            assert point.false_match_rate == rate
            assert is_halfway(threshold, *naive_threshold(negative, positive, rate))
            assert point.measured_false_match_rate == np.mean(negative >= threshold)
            assert point.true_match_rate == np.mean(positive >= threshold)
        error, error_threshold = naive_equal_error(negative, positive)
        assert found.equal_error_rate == pytest.approx(error, rel=1e-12)
        assert found.equal_error_threshold == sign * error_threshold
        assert found.thresholds[0] == sign * np.inf
        for threshold, false, true in zip(
            sign * found.thresholds, found.false_match_rates, found.true_match_rates, strict=True
        ):
            assert false == np.mean(negative >= threshold)
            assert true == np.mean(positive >= threshold)
        assert (found.false_match_rates[-1], found.true_match_rates[-1]) == (1, 1)


def test_intervals_are_the_central_95_percent_of_drawings_of_the_classes(monkeypatch):
    monkeypatch.setattr(pair_scores, "_BLOCK", 7)
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 6, 40)
    rows = rng.normal(size=(6, 4))[labels] + rng.normal(size=(40, 4))
    found = verification(rows, labels, [0.05], replicates=60, seed=5)
    (point,) = found.points
    resampled = []
    for replicate in range(60):
        drawn = np.random.default_rng((5, replicate)).multinomial(6, np.full(6, 1 / 6))
        negative, positive = naive_pairs(rows, labels, "cosine", drawn)
        low = np.mean(naive_threshold(negative, positive, 0.05))
        false = np.mean(negative >= point.threshold)
        error, _ = naive_equal_error(negative, positive)
        resampled.append((error, low, false, np.mean(positive >= low)))
    expected = np.quantile(resampled, [0.025, 0.975], axis=0, method="inverted_cdf").T
    np.testing.assert_allclose(intervals(found)[1:], expected[1:], rtol=1e-6)
    np.testing.assert_allclose(intervals(found)[0], expected[0], atol=0.02)


def intervals(found):
    """Return all intervals of a verification, `[i, 2]`."""
    kinds = ("threshold_interval", "false_match_rate_interval", "true_match_rate_interval")
    of_points = [getattr(point, kind) for point in found.points for kind in kinds]
    return np.array([found.equal_error_rate_interval, *of_points])


def test_intervals_from_a_sample_are_close_to_those_from_all_pairs(monkeypatch):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 12, 400)
    rows = rng.normal(size=(12, 8))[labels] + rng.normal(size=(400, 8))
    rates = [0.1, 0.01, 0.001]
    exact = verification(rows, labels, rates, replicates=100)
    sizes = {"_FEW": 1, "_HIGHEST": 200, "_OF_THE_REST": 3000, "_OF_POSITIVES": 1000}
    for name, size in sizes.items():
        monkeypatch.setattr(pair_counts, name, size)
    sampled = verification(rows, labels, rates, replicates=100)
    assert 0 < np.abs(intervals(sampled) - intervals(exact)).max() < 0.06
    # At the highest scores, the sample has all pairs.
    found, expected = (each.points[-1].false_match_rate_interval for each in (sampled, exact))
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("function", "change", "message"),
    [
        (verification, {"labels": np.zeros(40)}, "at least two classes"),
        (verification, {"labels": np.arange(40)}, "labels must .*two rows"),
        (verification, {"false_match_rates": [1e-3]}, "600 negative pairs .*got 0.001.*3,000"),
        (verification, {"false_match_rates": 0.1}, "list of at least one rate"),
        (verification, {"false_match_rates": [0]}, "above 0 and below 1, but got 0"),
        (verification, {"replicates": -1}, "replicates must be a whole number"),
        (
            verification,
            {"embeddings": np.eye(40) * 3e38, "metric": "l2"},
            "embeddings must .*range of float32",
        ),
        (identification, {"labels": np.zeros(40)}, "known and unknown.*40 known and 0 unknown"),
        (identification, {"labels": np.arange(40)}, "known and unknown.*0 known and 40 unknown"),
        (
            identification,
            {"false_positive_identification_rates": [0.05]},
            "0.05 needs at least 60 unknown queries .* but got 40",
        ),
        (
            identification,
            {"false_positive_identification_rates": [2]},
            "false_positive_identification_rates must be a number above 0",
        ),
    ],
)
def test_refused_arguments(function, change, message):
    rng = np.random.default_rng(0)
    given = {"embeddings": rng.normal(size=(40, 3)), "labels": np.arange(40) % 4}
    with pytest.raises(ValueError, match=message):
        function(**given | change)


def test_the_number_of_pairs_for_a_rate():
    assert [pairs_needed(rate) for rate in (1e-3, 0.7)] == [3000, 5]
    # 12 rows of 2 classes: 36 negative pairs.
    rows, labels = np.random.default_rng(0).normal(size=(12, 3)), np.arange(12) % 2
    assert verification(rows, labels, [3 / 36]).points[0].measured_false_match_rate == 3 / 36
    with pytest.raises(ValueError, match="It needs 37 pairs"):
        verification(rows, labels, [3 / 36.5])


def naive_nearest(scores, labels, item_labels, own_rows):
    """Return scores of unknown queries, scores of known queries, and who is right, by a loop."""
    unknown, known, right = [], [], []
    for query, of_query in enumerate(scores):
        same = item_labels == labels[query]
        other = max(of_query[~same])
        if own_rows:
            same[query] = False
        if own_rows or not same.any():
            unknown.append(other)
        if same.any():
            mate = max(of_query[same])
            known.append(max(mate, other))
            right.append(mate > other)
    return np.array(unknown), np.array(known), np.array(right)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("with_gallery", [False, True])
def test_identification_agrees_with_a_loop_over_the_queries(metric, with_gallery, monkeypatch):
    monkeypatch.setattr(pair_scores, "_BLOCK", 7)
    embeddings, labels = awkward_set()
    gallery, gallery_labels = embeddings, labels
    sets = {}
    if with_gallery:
        gallery, gallery_labels = awkward_set(1)
        keep = gallery_labels < 5
        gallery, gallery_labels = gallery[keep], gallery_labels[keep]
        gallery[3:9] = embeddings[2]
        sets = {"gallery": gallery, "gallery_labels": gallery_labels}
    whole = slice(0, len(labels)), slice(0, len(gallery))
    scores = PairScores(embeddings, metric, gallery).block(*whole)
    found = identification(embeddings, labels, [0.3, 0.1], metric, **sets)
    unknown, known, right = naive_nearest(scores, labels, gallery_labels, not with_gallery)
    assert (found.unknown, found.known) == (len(unknown), len(known))
    sign = 1 if metric == "cosine" else -1
    for rate, point in zip((0.3, 0.1), found.points, strict=True):
        least = np.float32(sign * point.threshold)
        # Infinite if no query gets a class.
        assert is_halfway(least, *naive_threshold(unknown, known, rate))
        assert point.false_positive_identification_rate == np.mean(unknown >= least) <= rate
        assert point.detection_and_identification_rate == np.mean((known >= least) & right)
        assert point.misidentification_rate == np.mean((known >= least) & ~right)
        assert found.at(point.threshold) == point
    everything = found.at(sign * -1e9)
    assert everything.false_positive_identification_rate == 1
    shares = everything.detection_and_identification_rate, everything.misidentification_rate
    assert sum(shares) == pytest.approx(1)


def test_a_threshold_is_not_rounded(recwarn):
    # As float32, the number is below 0.7.
    rows = np.array([[1.0, 0], [0.7, np.sqrt(1 - 0.7**2)], [-1, 0], [-1, 0.1]])
    found = identification(rows, [0, 1, 2, 2], ())
    score = float(np.float32(0.7))
    assert score < 0.7 and found.at(0.7).false_positive_identification_rate == 0
    assert found.at(score).false_positive_identification_rate == 0.5
    assert found.at(1e300).detection_and_identification_rate == 0 and not recwarn.list
