"""Open-set identification, compared with loops."""

import numpy as np
import pytest
from retrieval_sets import awkward_set

from keras_dml._common.types import METRICS
from keras_dml.metrics import identification, pair_scores
from keras_dml.metrics.pair_scores import PairScores


def naive(scores, labels, item_labels, own_rows, threshold):
    """Compute FPIR, DIR, and the share of known queries with a wrong class, by a loop."""
    unknown, known = [], []
    for query, of_query in enumerate(scores):
        items = [item for item in range(len(item_labels)) if not (own_rows and item == query)]
        others = [item for item in items if item_labels[item] != labels[query]]
        mates = [item for item in items if item_labels[item] == labels[query]]
        if mates:
            nearest = max(of_query[items])
            wrong = others and max(of_query[others]) == nearest
            known.append("none" if nearest < threshold else "wrong" if wrong else "right")
        if own_rows or not mates:
            unknown.append(max(of_query[others]) >= threshold)
    return (
        np.mean(unknown),
        np.mean(np.array(known) == "right"),
        np.mean(np.array(known) == "wrong"),
    )


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("with_gallery", [False, True])
def test_it_agrees_with_a_loop_over_the_queries(metric, with_gallery, monkeypatch):
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
    sign = 1 if metric == "cosine" else -1
    for rate, point in zip((0.3, 0.1), found.points, strict=True):
        least = np.float32(sign * point.threshold)
        false, right, wrong = naive(scores, labels, gallery_labels, not with_gallery, least)
        assert point.false_positive_identification_rate == false <= rate
        assert point.detection_and_identification_rate == right
        assert point.misidentification_rate == wrong
        assert found.at(point.threshold) == point
        # The threshold is halfway between two scores at which the rate changes.
        values = np.unique(scores)
        for lower in values[values < least][::-1]:
            rates = naive(scores, labels, gallery_labels, not with_gallery, lower)
            if rates != (false, right, wrong):
                break
        for higher in values[values >= least]:
            beyond = np.nextafter(higher, np.float32(np.inf))
            others = naive(scores, labels, gallery_labels, not with_gallery, beyond)
            if others != (false, right, wrong):
                break
        else:  # no query gets a class
            higher = None
        assert rates[0] > rate
        if higher is None:
            assert lower < least <= lower + np.float32(1e-5)
        else:
            assert least == np.float32((np.float64(lower) + np.float64(higher)) / 2)
    everything = found.at(sign * -1e9)
    assert everything.false_positive_identification_rate == 1
    shares = everything.detection_and_identification_rate, everything.misidentification_rate
    assert sum(shares) == pytest.approx(1)


def test_equally_near_items_of_two_classes_are_no_identification():
    rows = np.array([[1.0, 0], [1, 0], [1, 0], [0, 1], [0, 1]])
    found = identification(rows, [0, 0, 1, 2, 2], [0.7])
    assert (found.known, found.unknown) == (4, 5)
    point = found.at(-1)
    assert point.detection_and_identification_rate == 0.5
    assert point.misidentification_rate == 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.zeros(40)}, "known and unknown queries.*40 known and 0 unknown"),
        ({"labels": np.arange(40)}, "known and unknown queries.*0 known and 40 unknown"),
        ({"rates": [0.05]}, "0.05 needs at least 60 unknown queries .* but got 40"),
        ({"rates": [2]}, "false_positive_identification_rates must be a number above 0"),
    ],
)
def test_refused_arguments(change, message):
    rng = np.random.default_rng(0)
    given = {"embeddings": rng.normal(size=(40, 3)), "labels": np.arange(40) % 4, "rates": [0.1]}
    given |= change
    rates = given.pop("rates")
    with pytest.raises(ValueError, match=message):
        identification(false_positive_identification_rates=rates, **given)


def test_a_threshold_is_not_rounded(recwarn):
    # As float32, the number is below 0.7.
    rows = np.array([[1.0, 0], [0.7, np.sqrt(1 - 0.7**2)], [-1, 0], [-1, 0.1]])
    found = identification(rows, [0, 1, 2, 2], ())
    score = float(max(found._unknown[:2]))
    assert score < 0.7 and found.at(0.7).false_positive_identification_rate == 0
    assert found.at(score).false_positive_identification_rate == 0.5
    assert found.at(1e300).detection_and_identification_rate == 0 and not recwarn.list
