"""Sentences about the scores of a run."""

import numpy as np
import pytest

from experiments.evaluation.conclusions import (
    below_raw_pixels,
    gain,
    paired_difference,
    training_gain,
)
from experiments.evaluation.embedded_sets import EmbeddedSet
from experiments.evaluation.result import rows_of
from experiments.evaluation.scores import SCORES, ScoredSet

UNTRAINED, NATIVE = "untrained backbone", "untrained backbone at 224 px"


def of_classes(*shares, images=10):
    """Return both scores as the same shares of equal classes."""
    scores = [[images * share for share in shares], [images] * len(shares)]
    return {"recall@1": scores, "map@r": scores}


def both(recall, precision):
    return {"recall@1": recall["recall@1"], "map@r": precision["map@r"]}


LOW, HIGH = of_classes(*np.linspace(0.4, 0.6, 8)), of_classes(*np.linspace(0.6, 0.85, 8))
MIXED = of_classes(*(np.linspace(0.4, 0.6, 8) + [0.1, -0.1] * 4))


@pytest.mark.parametrize(
    ("trained", "untrained", "text"),
    [
        (HIGH, LOW, "gains in R@1 and MAP@R over the untrained backbone: R@1 72.5 % against"),
        (both(MIXED, HIGH), LOW, "gains in MAP@R over the untrained backbone: R@1 50.0 %"),
        (both(LOW, HIGH), both(HIGH, LOW), "gains in MAP@R and loses in R@1 against the"),
        (LOW, HIGH, "makes the search worse than the untrained backbone, in R@1 and MAP@R: R@1"),
        (MIXED, LOW, "shows no clear gain or loss against the untrained backbone: R@1"),
        (LOW, LOW, "shows no clear gain or loss against the untrained backbone: R@1"),
    ],
)
def test_the_sentence_says_only_what_the_intervals_support(trained, untrained, text):
    found = training_gain({"embedding": trained, UNTRAINED: untrained, "raw pixels": HIGH})
    assert found.startswith(f"Training {text}")
    assert found.endswith(", 95 % intervals over 8 classes.")


def test_numbers_and_few_classes():
    few = of_classes(0.2, 0.4), of_classes(0.3, 0.5)
    found = training_gain({"embedding": few[1], UNTRAINED: few[0]})
    assert found == (
        "Too few test classes, 2 instead of 6 or more, to conclude whether training gains over the "
        "untrained backbone: R@1 40.0 % against 30.0 % (+10.0 ± 0.0), MAP@R 40.0 % against 30.0 % "
        "(+10.0 ± 0.0)."
    )
    assert training_gain({"embedding": HIGH}) == training_gain({UNTRAINED: HIGH}) == ""


def test_training_has_to_gain_over_the_better_image_size():
    """A gain at 160 pixels is worth nothing if 224 pixels without training are better."""
    better = both(HIGH, of_classes(*np.linspace(0.65, 0.9, 8)))
    scores = {"embedding": MIXED, UNTRAINED: LOW, NATIVE: better}
    found = training_gain(scores)
    assert found.startswith(f"Training makes the search worse than the {NATIVE}, in R@1 and MAP@R:")
    assert "R@1 50.0 % against 72.5 % (-22.5 ± " in found
    worse = {"embedding": MIXED, UNTRAINED: HIGH, NATIVE: LOW}
    assert f"worse than the {UNTRAINED}, in" in training_gain(worse)


def test_an_interval_over_classes_of_different_sizes():
    """The mean is over queries, and the interval covers the differences of the classes."""
    trained = {"map@r": [[9.0, 1.0, 0.0], [10, 2, 0]]}
    untrained = {"map@r": [[4.0, 1.0, 0.0], [10, 2, 0]]}
    found = gain(SCORES["map@r"], trained, untrained)
    assert (found.trained, found.untrained, found.classes) == (10 / 12, 5 / 12, 2)
    assert found.difference.mean == pytest.approx(100 * 5 / 12)
    # The values of both classes: d + (s - d n) / 6 of s = 5, n = 10 and of s = 0, n = 2.
    d = 5 / 12
    values = 100 * np.array([d + (5 - 10 * d) / 6, d - 2 * d / 6])
    assert found.difference.half_width == pytest.approx(12.7062 * values.std(ddof=1) / 2**0.5)
    assert gain(SCORES["map@r"], {"map@r": [[0.0], [0]]}, {"map@r": [[0.0], [0]]}) is None


def test_the_interval_covers_the_true_difference():
    """Of 400 trials, 93 to 97 % of the intervals contain it, although images of a class agree."""
    rng, covered = np.random.default_rng(0), 0
    for _ in range(400):
        sums = 10 * np.clip(0.5 + rng.normal(0.02, 0.05, 12), 0, 1)
        found = gain(SCORES["map@r"], {"map@r": [sums, [10] * 12]}, of_classes(*[0.5] * 12))
        covered += abs(found.difference.mean - 2.0) <= found.difference.half_width
    assert 372 <= covered <= 388


@pytest.mark.slow
def test_the_bootstrap_interval_of_two_runs_covers_the_true_difference():
    rng, covered = np.random.default_rng(0), 0
    for _ in range(100):
        sums = 10 * np.clip(0.5 + rng.normal(0.02, 0.05, 30), 0, 1)
        found = paired_difference(
            SCORES["map@r"], of_classes(*[0.5] * 30), {"map@r": [sums, [10] * 30]}
        )
        covered += found.low <= 2.0 <= found.high
    assert 88 <= covered <= 99
    assert found == paired_difference(
        SCORES["map@r"], of_classes(*[0.5] * 30), {"map@r": [sums, [10] * 30]}
    )


def test_two_runs_of_few_classes_or_without_scores():
    few = paired_difference(SCORES["map@r"], of_classes(0.2, 0.4), of_classes(0.3, 0.5))
    assert few.sentence("A", "B").startswith("Too few test classes, 2 instead of 6")
    nothing = {"map@r": [[0.0], [0]]}
    assert paired_difference(SCORES["map@r"], nothing, nothing) is None


def test_scores_of_classes_are_sums_over_their_queries():
    z = np.array([[0.0, 1], [0.1, 1], [1, 0], [0.2, 1], [0.3, 1]])
    labels = np.array([5, 5, 5, 7, 9])
    found = ScoredSet(EmbeddedSet(z, labels), (1, 2)).of_classes()
    assert found.keys() == {"recall@1", "map@r"}
    assert found["recall@1"] == [[1.0, 0.0, 0.0], [3, 1, 1]]
    # Queries without a match count as a miss in R@1, and are left out of MAP@R.
    assert found["map@r"][1] == [3, 0, 0]


def test_raw_pixels_that_are_better():
    rows = {"embedding, cosine": {"recall@1": 0.24}, "raw pixels, cosine": {"recall@1": 0.346}}
    assert below_raw_pixels(rows_of(rows)) == "R@1 24.0 % is below raw pixels (34.6 %)."
    rows["raw pixels, l2"] = {"recall@1": 0.4}
    assert below_raw_pixels(rows_of(rows)) == "R@1 24.0 % is below raw pixels (40.0 %)."
    for own in (0.3999, 0.41):  # no difference that the table shows
        assert not below_raw_pixels(rows_of(rows | {"embedding, cosine": {"recall@1": own}}))
    missing = {"raw pixels, cosine": {"recall@1": None}, "raw pixels, photo to catalog, cosine": {}}
    assert not below_raw_pixels(rows_of({"embedding, cosine": {"recall@1": 0.1}} | missing))


def test_scores_that_do_not_exist_lead_to_no_sentence():
    """As with a gallery that has an image of no query's class."""
    nothing = {key: [[0.0], [0]] for key in HIGH}
    assert training_gain({"embedding": nothing, UNTRAINED: nothing}) == ""
    for row in ({}, {"recall@1": None}, {"recall@1": float("nan")}):
        rows = {"embedding, cosine": row, "raw pixels, cosine": {"recall@1": 0.5}}
        assert below_raw_pixels(rows_of(rows)) == ""
    assert below_raw_pixels(rows_of({"embedding, cosine": {"recall@1": 0.0}})) == ""
