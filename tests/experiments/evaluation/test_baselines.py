"""The baseline in a headline, and the baselines of several runs."""

import math

import pytest

from experiments.evaluation.baselines import best_baseline, distinct_baselines

PIXELS = {"raw pixels, cosine": {"recall@1": 0.3}, "raw pixels, l2": {"recall@1": 0.4}}
UNTRAINED = {
    "untrained backbone, cosine": {"recall@1": 0.97},
    "untrained backbone, l2": {"recall@1": 0.96},
}


@pytest.mark.parametrize(
    ("recall", "expected"),
    [
        ({}, ("raw pixels", None)),
        (PIXELS, ("raw pixels, l2", 0.4)),
        (PIXELS | UNTRAINED, ("untrained backbone, cosine", 0.97)),
        (
            {"raw pixels, cosine": {"recall@1": math.nan}, "raw pixels, l2": {"recall@2": 0.5}},
            ("raw pixels", None),
        ),
    ],
)
def test_the_untrained_backbone_has_precedence_over_raw_pixels(recall, expected):
    assert best_baseline(recall) == expected


def result(share):
    rows = {
        "cosine": {"recall@1": share, "map@r": 0.5},
        "photo to catalog, cosine": {"recall@1": 0.25},
    }
    return {"baselines": {"untrained backbone": rows}}


def test_different_baselines_are_named_after_their_run():
    found = distinct_baselines({"first": result(0.97), "second": result(0.8), "3": result(0.8)})
    assert list(found) == ["untrained backbone (first)", "untrained backbone (second)"]
    assert found["untrained backbone (second)"]["cosine"]["recall@1"] == 0.8
