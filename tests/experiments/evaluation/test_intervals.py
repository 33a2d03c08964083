"""Numbers of several runs: intervals, differences, baselines, and tables in three formats."""

import csv
import math

import numpy as np
import pytest
from scipy import stats

from experiments.evaluation.conclusions import (
    Interval,
    best_baseline,
    differences,
    distinct_baselines,
    mean_interval,
)
from experiments.evaluation.measurement import find
from experiments.evaluation.result import baselines_of, rows_of
from experiments.evaluation.tables import MeanText, write_table


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
    assert mean_interval([3.0]).text() == "3.0"
    assert Interval(-0.01, 0.25).text() == "0.0 ± 0.2"


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
    assert found[1].verdict.startswith("larger than chance (p = ")
    assert found[1].mean == pytest.approx(np.mean(scores["best"] - scores["far"]))
    # Without pairing, the variance of the seeds hides the difference.
    assert stats.ttest_ind(scores["best"], scores["far"]).pvalue > found[1].p


def test_the_verdict_is_one_statement_of_the_corrected_p():
    """The interval of the first difference excludes 0 before the correction."""
    gaps = [1.0, 2.0, 3.0, 0.5, 2.0]
    scores = {"best": [9.0] * 5} | {f"other {n}": [9.0 - gap for gap in gaps] for n in range(9)}
    low = np.subtract(*mean_interval(gaps))
    first = differences(scores)[0]
    assert low > 0 and first.p > 0.05
    assert first.text() == (
        f"best leads other 0 by 1.7: no more than chance may give (p = {first.p:.2g})"
    )


def test_two_seeds_are_too_few_to_conclude_and_the_best_may_be_the_lowest():
    scores = {"a": [9.0, 9.1], "b": [1.0, 1.1]}
    (found,) = differences(scores)
    assert found.text() == "a leads b by 8.0: too few seeds to conclude, at least 3 are needed"
    (found,) = differences(scores, higher_is_better=False)
    assert found.text(2).startswith("b leads a by 8.00: ")
    assert differences({"a": [1.0, 2.0]}) == []


@pytest.mark.parametrize(("gap", "p"), [(0.0, 1.0), (1.0, 0.0)])
def test_constant_differences(gap, p):
    scores = {"a": [5.0, 7.0, 6.0], "b": [5.0 - gap, 7.0 - gap, 6.0 - gap]}
    (found,) = differences(scores)
    assert found.p == p


PIXELS = {"raw pixels, cosine": {"recall@1": 0.3}, "raw pixels, l2": {"recall@1": 0.4}}
UNTRAINED = {
    "untrained backbone, cosine": {"recall@1": 0.97},
    "untrained backbone, l2": {"recall@1": 0.96},
}


@pytest.mark.parametrize(
    ("recall", "expected"),
    [
        ({}, None),
        (PIXELS, ("raw pixels, l2", 0.4)),
        (PIXELS | UNTRAINED, ("untrained backbone, cosine", 0.97)),
        (
            {"untrained backbone at 224 px, l2": {"recall@1": 0.98}} | UNTRAINED,
            ("untrained backbone at 224 px, l2", 0.98),
        ),
        (
            {"untrained backbone, photo to catalog, cosine": {"recall@1": 0.99}} | UNTRAINED,
            ("untrained backbone, cosine", 0.97),
        ),
        (
            {"raw pixels, cosine": {"recall@1": math.nan}, "raw pixels, l2": {"recall@2": 0.5}},
            None,
        ),
    ],
)
def test_the_untrained_backbone_has_precedence_over_raw_pixels(recall, expected):
    found = best_baseline(rows_of(recall))
    assert (found and (found.row, found.value)) == expected


def result(share):
    rows = {
        "cosine": {"recall@1": share, "map@r": 0.5},
        "photo to catalog, cosine": {"recall@1": 0.25},
    }
    return baselines_of({"baselines": {"untrained backbone": rows}})


def test_different_baselines_are_named_after_their_run():
    found = distinct_baselines({"first": result(0.97), "second": result(0.8), "3": result(0.8)})
    assert list(found) == ["untrained backbone (first)", "untrained backbone (second)"]
    second = found["untrained backbone (second)"]
    assert find(second, "recall", 1, "cosine", "untrained backbone").value == 0.8
    of_pixels, native = {"cosine": {"recall@1": 0.3}}, "untrained backbone at 224 px"
    baselines = baselines_of({"baselines": {"raw pixels": of_pixels, native: of_pixels}})
    assert list(distinct_baselines({"only": baselines})) == [native, "raw pixels"]


LINES = [
    ["recipe", "R@1", "time, s"],
    ["cub_ce & co", MeanText("85.4", "0.6"), "–"],
    ["50 %", "97.4", "3.0"],
]


def test_a_table_is_written_in_three_formats(tmp_path):
    text = write_table(tmp_path / "study", LINES, "Below.")
    assert (tmp_path / "study.md").read_text() == f"{text}\n"
    assert text.splitlines() == [
        "| recipe      |        R@1 | time, s |",
        "| ----------- | ---------: | ------: |",
        "| cub_ce & co | 85.4 ± 0.6 |       – |",
        "| 50 %        |       97.4 |     3.0 |",
        "",
        "Below.",
    ]
    with open(tmp_path / "study.csv", newline="") as stream:
        assert list(csv.DictReader(stream)) == [
            {"recipe": "cub_ce & co", "R@1": "85.4", "R@1, ±": "0.6", "time, s": ""},
            {"recipe": "50 %", "R@1": "97.4", "R@1, ±": "", "time, s": "3.0"},
        ]
    latex = (tmp_path / "study.tex").read_text().splitlines()
    assert latex[0] == r"\begin{tabular}{lrr}" and latex[-1] == r"\end{tabular}"
    assert r"cub\_ce \& co & 85.4 $\pm$ 0.6 &       -- \\" in latex
    assert latex[5].startswith(r"50 \%")
