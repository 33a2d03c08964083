"""Figures and the map of embeddings: lines, words for screen readers, and colors."""

import math
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from experiments.evaluation.embedded_sets import EmbeddedSet
from experiments.evaluation.figures import Curves, Means, Trials, over_epochs
from experiments.pages import embedding_map
from experiments.pages.embedding_map import map_of, map_rows, places
from experiments.pages.figures import svg, svgs
from experiments.pages.page import environment
from pipelines import ImageTable

LINE = [(1, 0.4), (2, 0.5), (3, 0.6), (4, 0.5)]


def test_curves_show_their_points_and_describe_them():
    text = svg("Recall", Curves({"cosine": LINE, "l2": []}, "R@1, %", levels={"pixels": 0.2}))
    line = max(re.findall('<path d="([^"]*)"[^>]*stroke: #3b82d0', text), key=len)
    heights = [float(y) for y in re.findall(r"[ML] \S+ (\S+)", line)]
    # The y axis of SVG points down, so y is a decreasing linear function of the value.
    values = [value for _, value in LINE]
    assert np.corrcoef(values, heights)[0, 1] == pytest.approx(-1, abs=1e-10)
    label = ElementTree.fromstring(text).attrib["aria-label"]
    assert label == "Recall: cosine from 0.4 at epoch 1 to 0.5 at epoch 4; pixels 0.2"
    assert ">pixels<" in text and ">l2<" not in text
    assert "currentColor" in text and "#010203" not in text


@pytest.mark.parametrize(("length", "columns"), [(8, 2), (40, 1)])
def test_long_names_of_a_legend_are_below_each_other(length, columns):
    names = [letter * length for letter in "ab"]
    shown = svg("two", Curves({name: [(1, 1), (2, place)] for place, name in enumerate(names)}))
    lefts = re.findall(r'x="([\d.]+)"[^>]*>[ab]+</text>', shown)
    assert len(lefts) == 2 and len(set(lefts)) == columns


LONG = " ".join(["a" * 20] * 2)


@pytest.mark.parametrize(
    "figure", [Curves({"run": [(1, 0), (2, 1)]}, LONG), Means({"run": [1.0, 2.0]}, LONG)]
)
def test_long_labels_of_an_axis_are_wrapped(figure):
    assert len(re.findall("a{20}</text>", svg("one", figure))) == 2


def test_values_that_are_not_finite_are_left_out():
    rows = [{"epoch": n, "loss": value} for n, value in enumerate((2.0, math.nan, None, 1.0, 0.5))]
    assert over_epochs([*rows, {"loss": 3.0}], "loss", 2) == [(0, 4.0), (3, 2.0), (4, 1.0)]


@pytest.mark.parametrize(
    "empty",
    [Curves({"loss": [(1, 0.5)]}), Curves({}), Trials([{"margin": 0.5}], [None], 0, (), "")],
)
def test_figures_without_numbers_are_left_out(empty):
    assert svgs({"empty": empty, "full": Curves({"loss": LINE})}).keys() == {"full"}


def test_means_have_their_interval_in_words():
    text = svg("Scores", Means({"best": [80.0, 82.0], "<one>": [70.0]}, "R@1, %"))
    label = ElementTree.fromstring(text).attrib["aria-label"]
    assert label == "Scores: best 81.0 ± 12.7; <one> 70.0"


def test_each_hyperparameter_has_a_panel():
    values = [{"learning_rate": 10.0**-n, "optimizer": "ab"[n % 2]} for n in range(6)]
    scores = [40.0, 41.0, 42.0, 43.0, None, 45.0]
    trials = Trials(values, scores, 5, ["learning_rate"], "MAP@R, %")
    text = svg("Trials", trials)
    assert "6 trials, MAP@R, % from 40.0 to 45.0; best: learning_rate 1e-05, optimizer b" in text
    for word in ("learning_rate", "optimizer", "MAP@R, %"):
        assert f">{word}<" in text


RNG = np.random.default_rng(0)


def test_groups_stay_together():
    centers = np.eye(3, 8, dtype="float32")
    labels = np.repeat(np.arange(3), 20)
    where = places(centers[labels] + RNG.normal(scale=0.02, size=(60, 8)).astype("float32"))
    assert where.min() >= 0 and where.max() <= 1
    distances = np.linalg.norm(where[:, None] - where, axis=-1) + 9 * np.eye(60)
    assert (labels[distances.argmin(1)] == labels).all()


@pytest.mark.parametrize(
    "embeddings",
    [np.ones((40, 4)), np.zeros((40, 4)), RNG.normal(size=(5, 4)), RNG.normal(size=(40, 1))],
    ids=["collapsed", "zeros", "few", "one dimension"],
)
def test_degenerate_embeddings_have_no_map(embeddings):
    assert places(embeddings.astype("float32")) is None


def test_many_images_are_sampled_deterministically():
    rows = map_rows(10 * embedding_map.MOST_POINTS)
    assert len(set(rows.tolist())) == embedding_map.MOST_POINTS
    np.testing.assert_array_equal(rows, map_rows(10 * embedding_map.MOST_POINTS))
    np.testing.assert_array_equal(map_rows(7), np.arange(7))


def test_pictures_do_not_overlap_and_all_names_are_listed():
    names = [f"class <{number}>" for number in range(300)]
    table = ImageTable.from_arrays(np.zeros((300, 9, 7, 3), np.uint8), np.arange(300), names)
    test = EmbeddedSet(RNG.normal(size=(300, 3)).astype("float32"), table.labels, table)
    found = map_of(test, lambda table: table.arrays)
    corners = np.array([(x, y) for x, y, *_ in found.pictures])
    apart = np.abs(corners[:, None] - corners).max(-1) + 1000 * np.eye(len(corners), dtype=int)
    assert apart.min() >= found.side and len(corners) > 50
    shown = [name for *_, name in found.dots] + [name for *_, name, _ in found.pictures]
    assert sorted(shown) == sorted(names)
    assert map_of(test._replace(embeddings=np.ones((300, 3))), lambda table: table.arrays) is None
    drawn = environment().from_string('{% import "parts.html" as parts %}{{ parts.map(shown) }}')
    svg = ElementTree.fromstring(drawn.render(shown=found))
    assert sum(element.tag == "title" for element in svg.iter()) == 300
