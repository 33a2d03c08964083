"""Samplers of tags and of hierarchies: contents of the batches, repetition, and messages."""

import numpy as np
import pytest

from pipelines import BalancedSampler, CatalogSampler, HierarchySampler, TagSampler

RNG = np.random.default_rng(0)
TAGS = (RNG.random((60, 7)) < 0.3).astype(int)
PATHS = np.stack([np.arange(96) // 24, np.arange(96) // 6 % 4], axis=1)


def test_a_batch_has_images_of_each_drawn_tag_and_all_tags_come_up():
    sampler = TagSampler(TAGS, tags_per_batch=3, images_per_tag=4, seed=1)
    seen = np.zeros(7, int)
    for step in range(14):
        groups = TAGS[sampler(step)].reshape(3, 4, 7)
        shared = groups.all(axis=1)
        assert shared.any(axis=1).all()
        seen += shared.any(axis=0)
    assert (seen > 0).all() and sampler.batch_size == 12 and sampler.steps_per_epoch == 5


def test_ids_draw_the_batches_of_the_same_multi_hot_tags():
    ids = np.full((60, 7), -1)
    for row, tags in enumerate(TAGS):
        found = np.flatnonzero(tags)
        ids[row, : len(found)] = found
    one, other = TagSampler(TAGS, 3, 4, seed=1), TagSampler(ids, 3, 4, encoding="ids", seed=1)
    for step in range(5):
        np.testing.assert_array_equal(one(step), other(step))


def test_a_batch_has_products_of_each_category_and_images_of_each_product():
    sampler = HierarchySampler(PATHS, 2, products_per_category=3, images_per_product=4, seed=3)
    seen = np.zeros(96, int)
    for step in range(40):
        rows = sampler(step)
        assert len(set(rows)) == 24
        groups = PATHS[rows].reshape(2, 3, 4, 2)
        assert (groups == groups[:, :, :1]).all()  # one product
        assert (groups[..., 0] == groups[:, :1, :1, 0]).all()  # one category
        assert len(np.unique(groups[:, :, 0].reshape(6, 2), axis=0)) == 6
        seen[rows] += 1
    assert (seen > 0).all()


@pytest.mark.parametrize(
    "sampler", [TagSampler(TAGS, 2, 4, seed=5), HierarchySampler(PATHS, 2, 2, 2)]
)
def test_a_batch_is_a_function_of_the_step(sampler):
    forward = [sampler(step) for step in range(6)]
    for step in reversed(range(6)):
        np.testing.assert_array_equal(sampler(step), forward[step])
    assert any((forward[0] != rows).any() for rows in forward[1:])


def test_small_categories_and_products_repeat():
    paths = np.array([[0, 0], [0, 0], [1, 0], [1, 1]])
    rows = HierarchySampler(paths, 2, 2, 2)(0)
    assert len(rows) == 8 and set(rows) == {0, 1, 2, 3}


MISTAKES = {
    "too many tags": (lambda: TagSampler(TAGS, 8, 2), "tags_per_batch .*7"),
    "ids as multi-hot": (lambda: TagSampler(np.array([[2, 3]]), 1, 1), "encoding='ids'"),
    "class ids as tags": (lambda: TagSampler(np.arange(4), 1, 1), "tags must be a matrix"),
    "a class without a picture": (
        lambda: CatalogSampler(BalancedSampler([0, 1], 2, 1), [0, 1], [0, 2]),
        r"catalog_labels must have a picture.*class 1\.",
    ),
    "too many categories": (lambda: HierarchySampler(PATHS, 5, 2, 2), "categories_per_batch .*4"),
    "class ids as paths": (
        lambda: HierarchySampler(np.arange(4), 1, 1, 1),
        "labels must be a matr",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_raise_an_error(case):
    make, message = MISTAKES[case]
    with pytest.raises(ValueError, match=message):
        make()


def test_each_image_gets_a_picture_of_its_class_and_all_pictures_come_up():
    photos, catalog = np.repeat(np.arange(3), 4), np.array([2, 0, 1, 0])
    sampler = BalancedSampler(photos, classes_per_batch=2, images_per_class=2)
    pictures = CatalogSampler(sampler, photos, catalog, seed=1)
    assert pictures.batch_size == 4
    seen = set()
    for step in range(20):
        rows = pictures(step)
        assert (catalog[rows] == photos[sampler(step)]).all()
        assert (rows == pictures(step)).all()
        seen |= set(rows.tolist())
    assert seen == {0, 1, 2, 3}
