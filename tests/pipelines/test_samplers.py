"""Samplers: balance, permutations, tags, hierarchies, catalogs, and mistakes."""

import itertools
import math
import pickle
import time
import warnings

import numpy as np
import pytest
import tiers
from scipy import stats

from pipelines import (
    BalancedSampler,
    CatalogSampler,
    HierarchySampler,
    RandomSampler,
    TagSampler,
)
from pipelines.permutation import SORTED_UP_TO, derive_keys, permuted, seed_key
from pipelines.samplers import balanced_batches

RNG = np.random.default_rng(0)
TAGS = (RNG.random((60, 7)) < 0.3).astype(int)
PATHS = np.stack([np.arange(96) // 24, np.arange(96) // 6 % 4], axis=1)


def labels_of_sizes(sizes, seed=0):
    """Return shuffled labels with gaps in their numbers and these class sizes."""
    labels = np.repeat(7 + 3 * np.arange(len(sizes)), sizes)
    return np.random.default_rng(seed).permutation(labels)


def test_small_permutations_are_uniform():
    draws = 24_000
    keys = derive_keys(seed_key(1), np.arange(draws))
    items = permuted(keys, np.full(draws, 4), np.tile(np.arange(4), (draws, 1)))
    orders, counts = np.unique(items, axis=0, return_counts=True)
    assert (np.sort(orders) == np.arange(4)).all() and len(orders) == 24
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("size", [SORTED_UP_TO + 1, 100])
def test_pairs_in_large_permutations_are_uniform(size):
    draws = 40_000
    keys = derive_keys(seed_key(2), np.arange(draws))
    positions = np.tile([size // 2, size // 2 + 1], (draws, 1))
    first, second = permuted(keys, np.full(draws, size), positions).T
    counts = np.bincount((second - first) % size, minlength=size)
    assert counts[0] == 0
    assert stats.chisquare(counts[1:]).pvalue > 1e-3


@pytest.mark.parametrize(
    ("num_images", "batch_size"), [(1, 1), (10, 3), (12, 4), (63, 9), (64, 8), (65, 5), (300, 128)]
)
def test_random_batches_have_each_image_at_most_once_per_epoch(num_images, batch_size):
    sampler = RandomSampler(num_images, batch_size, seed=5)
    steps = num_images // batch_size
    assert (sampler.steps_per_epoch, sampler.batch_size) == (steps, batch_size)
    for epoch in range(4):
        rows = np.concatenate([sampler(epoch * steps + step) for step in range(steps)])
        assert rows.dtype == np.int64
        assert len(set(rows.tolist())) == len(rows) == steps * batch_size
        assert set(rows.tolist()) <= set(range(num_images))


def test_random_epochs_differ_in_order_and_in_dropped_images():
    sampler = RandomSampler(103, 10)
    epochs = [[sampler(10 * epoch + step) for step in range(10)] for epoch in range(30)]
    dropped = {frozenset(range(103)) - set(np.concatenate(epoch).tolist()) for epoch in epochs}
    assert len(dropped) > 25
    assert not np.array_equal(epochs[0][0], epochs[1][0])


def check_balance(sizes, classes_per_batch, images_per_class, steps):
    """Count the guarantees of the sampler, from only its output and the labels."""
    labels = labels_of_sizes(sizes)
    names, size_of = np.unique(labels, return_counts=True)
    sampler = BalancedSampler(labels, classes_per_batch, images_per_class, seed=0)
    assert sampler.batch_size == classes_per_batch * images_per_class
    assert sampler.steps_per_epoch == max(1, len(labels) // sampler.batch_size)
    class_counts, image_counts = np.zeros(len(names), int), np.zeros(len(labels), int)
    for step in range(steps):
        rows = sampler(step)
        assert rows.dtype == np.int64
        groups = rows.reshape(classes_per_batch, images_per_class)
        drawn = np.searchsorted(names, labels[groups[:, 0]])
        assert len(set(drawn)) == classes_per_batch, "a class twice in a batch"
        class_counts[drawn] += 1
        assert np.ptp(class_counts) <= 1, "classes unequal"
        for group, number in zip(groups, drawn):
            assert (labels[group] == names[number]).all(), "a group holds two classes"
            _, copies = np.unique(group, return_counts=True)
            assert copies.max() <= math.ceil(images_per_class / size_of[number])
            assert len(copies) == min(images_per_class, size_of[number])
            np.add.at(image_counts, group, 1)
            counts = image_counts[labels == names[number]]
            assert np.ptp(counts) <= 1, "images of a class unequally often"


@tiers.parametrize("number", range(1, 12), [1, 5])
def test_balance_for_every_small_number_of_classes_and_images(number):
    for images_per_class in range(1, 12):
        check_balance([number, number, 11], 1, images_per_class, steps=36)
    sizes = np.random.default_rng(number).integers(1, 12, number)
    for classes_per_batch in range(1, number + 1):
        for images_per_class in (1, 2, 5):
            check_balance(sizes, classes_per_batch, images_per_class, steps=30)


@pytest.mark.parametrize(
    ("num_classes", "classes_per_batch"), [(70, 69), (130, 90), (179, 90), (180, 90), (140, 6)]
)
def test_balance_for_many_classes(num_classes, classes_per_batch):
    sizes = np.random.default_rng(0).integers(1, 90, num_classes)
    check_balance(sizes, classes_per_batch, 4, steps=50)


SAMPLERS = {
    "random": lambda seed: RandomSampler(150, 20, seed),
    "windows": lambda seed: BalancedSampler(labels_of_sizes([2, 9, 30, 5, 70] * 3), 5, 4, seed),
    "others": lambda seed: BalancedSampler(labels_of_sizes([2, 9, 30, 5, 70]), 4, 6, seed),
    "every class": lambda seed: BalancedSampler(labels_of_sizes([6, 9, 30]), 3, 5, seed),
    "tags": lambda seed: TagSampler(TAGS, 2, 4, seed=seed),
    "hierarchy": lambda seed: HierarchySampler(PATHS, 2, 2, 2, seed=seed),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_batches_are_a_function_of_seed_and_step(name):
    sequential = SAMPLERS[name](4)
    batches = [sequential(step) for step in range(80)]
    shuffled = pickle.loads(pickle.dumps(SAMPLERS[name](4)))
    for step in np.random.default_rng(0).permutation(80):
        np.testing.assert_array_equal(shuffled(step), batches[step])
    np.testing.assert_array_equal(SAMPLERS[name](4)(10**9), sequential(10**9))
    others = {tuple(SAMPLERS[name](seed)(0)) for seed in (0, 1, 2, -1, 2**40)}
    assert len(others) == 5


def test_each_cycle_mixes_the_classes_differently():
    sampler = BalancedSampler(np.repeat(np.arange(20), 5), 5, 2)
    together = {frozenset((sampler(step)[::2] // 5).tolist()) for step in range(40)}
    assert len(together) > 35


def test_a_table_the_size_of_stanford_online_products():
    sizes = np.random.default_rng(0).integers(2, 13, 22_634)
    labels = labels_of_sizes(sizes)
    start = time.perf_counter()
    sampler = BalancedSampler(labels, 90, 2)
    built = time.perf_counter()
    batches = [sampler(step) for step in range(400)]
    ended = time.perf_counter()
    # About ten times the usual time. A cost that grows with the table would take longer.
    assert built - start < 0.5
    assert (ended - built) / 400 < 0.01
    classes = labels[np.concatenate(batches)].reshape(-1, 2)
    np.testing.assert_array_equal(classes[:, 0], classes[:, 1])
    _, counts = np.unique(classes[:, 0], return_counts=True)
    assert len(counts) == 22_634 and set(counts) == {1, 2}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RandomSampler(5, 6), "at most the number of images, 5, but got 6"),
        (lambda: BalancedSampler([0, 1, 1], 3, 1), "number of classes, 2, but got 3"),
        (lambda: BalancedSampler([0.5, 1], 1, 1), "labels must be .*0.5 in row 0"),
        (lambda: BalancedSampler([[0, 1]], 1, 1), r"integers of shape \[n\].*\(1, 2\)"),
        # NumPy reads these as strings.
        (lambda: BalancedSampler(["a", math.nan], 1, 1), "labels must be .* but got nan"),
        # Out of range: this seed would repeat the batches of another seed.
        (lambda: BalancedSampler([0, 1], 1, 1, seed=2**64), r"seed must be .* but got \d{20}"),
        (lambda: RandomSampler(2**70, 2), "num_images must be .*at most"),
        (lambda: RandomSampler(5, 2)(2**62), "step must be .* but got 4611686018427387904"),
        (lambda: BalancedSampler([0, 1], 2, 2)(-1), "step must be .*from 0.* but got -1"),
        (lambda: TagSampler(TAGS, 8, 2), "tags_per_batch .*7"),
        (lambda: TagSampler(np.array([[2, 3]]), 1, 1), "encoding='ids'"),
        (lambda: TagSampler(np.arange(4), 1, 1), "tags must be a matrix"),
        (lambda: TagSampler(np.array([[1, -2]]), 1, 1, encoding="ids"), "tag ids from 0 on.*-2"),
        (lambda: TagSampler(np.array([[1.5, 2]]), 1, 1, encoding="ids"), "tags must be"),
        (lambda: CatalogSampler(BalancedSampler([0, 1], 2, 1), [0, 1], [0, 2]),
         r"catalog_labels must have a picture.*class 1\."),
        (lambda: HierarchySampler(PATHS, 5, 2, 2), "categories_per_batch .*4"),
        (lambda: HierarchySampler(np.arange(4), 1, 1, 1), "labels must be a"),
    ],
)  # fmt: skip
def test_bad_input(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_largest_steps_and_seeds():
    labels = np.arange(7) % 5
    for seed in (-(2**63), 2**63 - 1):
        sampler = BalancedSampler(labels, 4, 3, seed)
        for step in range(2**62 // 12 - 20, 2**62 // 12 + 1):
            assert len(set(labels[sampler(step)])) == 4
        sampler = RandomSampler(10, 4, seed)
        last = 2**62 // 4
        epoch = np.concatenate([sampler(last - last % 2 - 2), sampler(last - last % 2 - 1)])
        assert len(set(epoch)) == 8


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
    ids = np.where(TAGS, np.arange(7), -1)
    one, other = TagSampler(TAGS, 3, 4, seed=1), TagSampler(ids, 3, 4, encoding="ids", seed=1)
    for step in range(5):
        np.testing.assert_array_equal(one(step), other(step))


def test_a_tag_that_a_row_repeats_draws_the_same_batches():
    ids = np.where(TAGS, np.arange(7), -1)
    twice = np.concatenate([ids, ids[:, ::-1]], axis=1)
    one, other = (TagSampler(each, 3, 4, encoding="ids", seed=1) for each in (ids, twice))
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
    ("categories", "products", "images"),
    [(1, 1, 2), (2, 3, 2), (3, 2, 4), (4, 7, 1), (2, 4, 3)],
)
def test_all_images_of_a_product_come_up_equally_often_at_any_time(categories, products, images):
    """With 2, 3, 5, and 9 products of 1 to 11 images, so that some of them repeat in a batch."""
    sizes = np.random.default_rng(0).integers(1, 12, 19)
    of_products = np.repeat(np.arange(19), sizes)
    category = np.searchsorted([2, 5, 10], np.arange(19), side="right")
    paths = np.stack([category[of_products], of_products], axis=1)
    sampler = HierarchySampler(paths, categories, products, images, seed=1)
    seen = np.zeros(len(paths), int)
    for step in range(60):
        np.add.at(seen, sampler(step), 1)
        for product in range(19):
            assert np.ptp(seen[of_products == product]) <= 1


def test_a_large_product_is_not_starved_and_pairs_change():
    large = np.repeat([[0, number] for number in range(11)], [10] * 10 + [1000], axis=0)
    sampler = HierarchySampler(large, 1, products_per_category=2, images_per_product=2)
    shown = np.concatenate([sampler(step) for step in range(1000)])
    assert len(np.unique(shown[shown >= 100])) > 350  # of 2 images in 2 of 11 batches
    # All products are in each batch.
    sampler = HierarchySampler(large[:40], 1, products_per_category=4, images_per_product=2)
    pairs = [set(sampler(step)[:2].tolist()) for step in range(10)]
    assert all(one != other for one, other in itertools.pairwise(pairs))


def test_batches_without_positives_warn_once():
    labels = np.arange(8) // 2
    with pytest.warns(UserWarning, match="images_per_class=1 .*A loss over pairs learns nothing"):
        BalancedSampler(labels, 4, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BalancedSampler(labels, 2, 2)
        HierarchySampler(np.stack([labels // 2, labels], axis=1), 2, 1, 2)
        balanced_batches(labels, 4, images_per_class=1)  # of a command, which checks its loss


def test_small_categories_and_products_repeat():
    paths = np.array([[0, 0], [0, 0], [1, 0], [1, 1]])
    rows = HierarchySampler(paths, 2, 2, 2)(0)
    assert len(rows) == 8 and set(rows) == {0, 1, 2, 3}


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
