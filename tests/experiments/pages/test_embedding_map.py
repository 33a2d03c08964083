"""The map of test embeddings."""

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from experiments.pages import embedding_map
from experiments.pages.embedding_map import map_rows, map_svg, places, with_pictures

RNG = np.random.default_rng(0)


def test_groups_stay_together():
    centers = np.eye(3, 8, dtype="float32")
    labels = np.repeat(np.arange(3), 20)
    where = places(centers[labels] + RNG.normal(scale=0.02, size=(60, 8)).astype("float32"))
    assert where.min() >= 0
    assert where.max() <= 1
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
    where = RNG.random((500, 2))
    names = [f"class <{number}>" for number in range(500)]
    svg = map_svg(where, names, lambda rows: np.zeros((len(rows), 9, 7, 3), np.uint8))
    images = re.findall(r'<image x="(-?\d+)" y="(-?\d+)" width="(\d+)"', svg)
    assert len(images) == len(with_pictures(where)) > 50
    corners, side = np.array(images, int)[:, :2], int(images[0][2])
    apart = np.abs(corners[:, None] - corners).max(-1) + 1000 * np.eye(len(corners), dtype=int)
    assert apart.min() >= side
    assert svg.count("<title>") == 500
    assert svg.count("<circle") == 500 - len(images)
    ElementTree.fromstring(svg)
