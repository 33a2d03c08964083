"""Intervals and differences, compared with SciPy and with values computed by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from experiments.evaluation.intervals import differences, mean_interval


@pytest.mark.parametrize("count", [2, 5, 30])
def test_an_interval_equals_scipy(count):
    scores = np.random.default_rng(count).normal(80, 2, count)
    low, high = stats.t.interval(0.95, count - 1, scores.mean(), stats.sem(scores))
    found = mean_interval(scores)
    assert found.mean - found.half_width == pytest.approx(low)
    assert found.mean + found.half_width == pytest.approx(high)


def test_one_score_has_no_interval():
    assert mean_interval([3.0])[0] == 3
    assert math.isnan(mean_interval([3.0]).half_width)


def test_differences_are_paired_and_corrected():
    rng = np.random.default_rng(0)
    seeds = rng.normal(0, 3, 6)  # a seed has the same effect on each recipe
    scores = {
        "near": 80 + seeds + rng.normal(0, 0.5, 6),
        "best": 81 + seeds + rng.normal(0, 0.5, 6),
        "far": 75 + seeds + rng.normal(0, 0.5, 6),
    }
    found = differences(scores)
    assert [one.name for one in found] == ["near", "far"]
    raw = {one.name: stats.ttest_rel(scores["best"], scores[one.name]).pvalue for one in found}
    assert raw["far"] < raw["near"]
    assert found[1].p == pytest.approx(2 * raw["far"])  # Holm's correction of two comparisons
    assert found[0].p == pytest.approx(max(raw["near"], 2 * raw["far"]))
    assert found[1].beyond_chance
    gap = scores["best"] - scores["far"]
    assert found[1].interval == mean_interval(gap)
    # Without pairing, the variance of the seeds hides the difference.
    assert stats.ttest_ind(scores["best"], scores["far"]).pvalue > found[1].p


@pytest.mark.parametrize(("gap", "p"), [(0.0, 1.0), (1.0, 0.0)])
def test_constant_differences(gap, p):
    scores = {"a": [5.0, 7.0, 6.0], "b": [5.0 - gap, 7.0 - gap, 6.0 - gap]}
    (found,) = differences(scores)
    assert found.p == p
    assert found.beyond_chance == (gap > 0)


def test_one_recipe_has_no_differences():
    assert differences({"a": [1.0, 2.0]}) == []
