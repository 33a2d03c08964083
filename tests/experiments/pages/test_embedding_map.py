"""The map of test embeddings."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from experiments.evaluation.labeled_embeddings import EmbeddedSet
from experiments.pages import embedding_map
from experiments.pages.embedding_map import map_of, map_rows, places
from experiments.pages.page import environment
from pipelines import ImageTable

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
