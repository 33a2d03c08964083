"""Baselines: which one a headline shows, and the baselines of several runs."""

import math

import pytest

from experiments.report.baselines import best_baseline, distinct_baselines

PIXELS = {"raw pixels, cosine": {1: 0.3}, "raw pixels, l2": {1: 0.4}}
UNTRAINED = {"untrained backbone, cosine": {1: 0.97}, "untrained backbone, l2": {1: 0.96}}


@pytest.mark.parametrize(
    ("recall", "expected"),
    [
        ({}, ("raw pixels", None)),
        (PIXELS, ("raw pixels, l2", 0.4)),
        (PIXELS | UNTRAINED, ("untrained backbone, cosine", 0.97)),
        ({"raw pixels, cosine": {1: math.nan}, "raw pixels, l2": {2: 0.5}}, ("raw pixels", None)),
    ],
)
def test_the_untrained_backbone_comes_before_the_raw_pixels(recall, expected):
    assert best_baseline(recall) == expected


def result(share, baselines=True):
    rows = {"cosine": {"1": share, "MAP@R": 0.5}, "photo to catalog, cosine": {"1": 0.25}}
    recall = {f"untrained backbone, {row}": {"1": by_k["1"]} for row, by_k in rows.items()}
    more = {"baselines": {"untrained backbone": rows}} if baselines else {}
    return {"recall": {"embedding, cosine": {"1": 0.9}} | recall, **more}


def test_runs_with_the_same_baseline_show_it_once():
    same = {"first": result(0.971), "second": result(0.97101), "without": {"recall": {}}}
    found = distinct_baselines(same)
    assert found == {"untrained backbone": result(0.971)["baselines"]["untrained backbone"]}
    assert distinct_baselines({"without": {"recall": {}}}) == {}
    # A run of an earlier version has recall only.
    old = distinct_baselines({"old": result(0.971, baselines=False)})
    assert old["untrained backbone"]["cosine"] == {"1": 0.971}


def test_baselines_that_differ_have_the_name_of_their_run():
    found = distinct_baselines({"first": result(0.97), "second": result(0.8), "3": result(0.8)})
    assert list(found) == ["untrained backbone (first)", "untrained backbone (second)"]
    assert found["untrained backbone (second)"]["cosine"]["1"] == 0.8
