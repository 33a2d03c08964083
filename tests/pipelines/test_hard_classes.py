"""Batches of confusable classes: loops, epochs, tables by step, and mistakes."""

import itertools
import pickle

import numpy as np
import pytest

from pipelines import HardClassSampler

SIZES = [2, 9, 3, 5, 7, 1, 4, 8, 6, 3, 5, 2]
CLASSES = len(SIZES)


def shuffled_labels(sizes=SIZES):
    """Return shuffled labels with gaps in their numbers and these class sizes."""
    labels = np.repeat(7 + 3 * np.arange(len(sizes)), sizes)
    return np.random.default_rng(0).permutation(labels)


def table(k=6, seed=0, classes=CLASSES):
    """Return k random other classes of each class."""
    rng = np.random.default_rng(seed)
    return np.stack([rng.permutation(np.delete(np.arange(classes), c))[:k] for c in range(classes)])


def classes_of(labels, rows, each):
    groups = labels[rows].reshape(-1, each)
    assert (groups == groups[:, :1]).all(), "a group holds two classes"
    return np.searchsorted(np.unique(labels), groups[:, 0]).tolist()


@pytest.mark.parametrize("hardness", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("per_batch", [1, 2, 5, 7])
def test_every_class_leads_once_and_no_class_appears_twice(hardness, per_batch):
    labels, neighbors = shuffled_labels(), table()
    sampler = HardClassSampler(labels, per_batch, 3, neighbors, hardness, seed=4)
    near = round(hardness * (per_batch - 1))
    assert sampler.nearest_per_batch == near
    assert (sampler.batch_size, sampler.steps_per_epoch) == (3 * per_batch, CLASSES)
    orders = []
    for epoch in range(4):
        leaders = []
        for step in range(epoch * CLASSES, (epoch + 1) * CLASSES):
            rows = sampler(step)
            assert rows.dtype == np.int64
            leader, *others = classes_of(labels, rows, 3)
            assert len({leader, *others}) == per_batch, "a class twice in a batch"
            assert set(others[:near]) <= set(neighbors[leader].tolist()), "not near its leader"
            leaders.append(leader)
            for group in rows.reshape(-1, 3):
                size = (labels == labels[group[0]]).sum()
                _, copies = np.unique(group, return_counts=True)
                assert len(copies) == min(3, size) and copies.max() <= -(-3 // size)
        assert sorted(leaders) == list(range(CLASSES)), "a class did not lead once"
        orders.append(tuple(leaders))
    assert len(set(orders)) == 4, "two epochs in one order"


def test_near_classes_others_and_images_are_drawn_evenly():
    labels, neighbors = shuffled_labels(), table()
    sampler = HardClassSampler(labels, 5, 3, neighbors, 0.5)
    near, others = np.zeros((2, CLASSES, CLASSES))
    images = np.zeros(len(labels))
    epochs = 150
    for step in range(epochs * CLASSES):
        rows = sampler(step)
        leader, *rest = classes_of(labels, rows, 3)
        near[leader, rest[:2]] += 1
        others[leader, rest[2:]] += 1
        images[np.unique(rows)] += 1
    for leader, nearest in enumerate(neighbors):
        # Two of six near classes, and then two of the nine classes that are left.
        assert np.abs(near[leader, nearest] / epochs - 2 / 6).max() < 0.17
        far = np.setdiff1d(np.arange(CLASSES), [*nearest, leader])
        assert near[leader, far].sum() == 0
        assert np.abs(others[leader, far] / epochs - 2 / 9).max() < 0.17
        assert np.abs(others[leader, nearest] / epochs - 4 / 6 * 2 / 9).max() < 0.17
    for label in np.unique(labels):
        counts = images[labels == label]
        assert np.ptp(counts) < 0.4 * counts.mean()


def test_a_step_uses_the_table_of_its_refresh_in_any_order_of_calls():
    labels = shuffled_labels()
    alone = [HardClassSampler(labels, 4, 2, table(seed=each), 1.0) for each in range(3)]
    sampler = HardClassSampler(labels, 4, 2, table(seed=0), 1.0)
    ahead = sampler(40)  # drawn before the refresh, with the table of that moment
    np.testing.assert_array_equal(ahead, alone[0](40))
    sampler.refresh(table(seed=1), first_step=12)
    sampler.refresh(table(seed=2), first_step=30)
    copy = pickle.loads(pickle.dumps(sampler))
    for step in np.random.default_rng(0).permutation(60):
        expected = alone[int(step >= 12) + int(step >= 30)](step)
        np.testing.assert_array_equal(sampler(step), expected)
        np.testing.assert_array_equal(copy(step), expected)


def test_a_restored_sampler_continues_with_the_same_batches():
    labels = shuffled_labels()
    whole = HardClassSampler(labels, 4, 2, hardness=1.0, seed=9)
    whole.refresh(table(seed=1), first_step=5)
    whole.refresh(table(seed=2), first_step=8)
    resumed = HardClassSampler(labels, 4, 2, hardness=1.0, seed=9)
    assert resumed.state()["neighbors"].shape == (0, CLASSES, 0)
    resumed.restore(whole.state())
    for step in range(20):
        np.testing.assert_array_equal(resumed(step), whole(step))
    resumed.restore(HardClassSampler(labels, 4, 2).state())
    assert len(resumed.state()["first_steps"]) == 0


def test_without_a_table_the_other_classes_are_random():
    labels = shuffled_labels()
    sampler = HardClassSampler(labels, 4, 2, hardness=1.0)
    seen = {pair for step in range(300) for pair in pairs_of(labels, sampler(step))}
    assert len(seen) == CLASSES * (CLASSES - 1)
    assert HardClassSampler(labels, CLASSES, 1)(3).shape == (CLASSES,)


def pairs_of(labels, rows):
    leader, *others = classes_of(labels, rows, 2)
    return itertools.product([leader], others)


def test_a_table_has_begun_when_its_first_batch_is_drawn():
    sampler = HardClassSampler(shuffled_labels(), 4, 2)
    sampler(5)
    sampler.refresh(table(), first_step=5)
    assert not sampler.has_begun(5)
    sampler(6)
    assert not sampler.has_begun(5)
    sampler(5)
    assert sampler.has_begun(5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes_per_batch": CLASSES + 1}, "classes_per_batch must be at most .* 12, but got 13"),
        ({"images_per_class": 0}, "images_per_class must be .*0"),
        ({"hardness": 1.5}, "hardness must be .*1.5"),
        ({"hardness": float("nan")}, "hardness must be .*nan"),
        ({"labels": np.zeros((3, 2), int)}, "labels must be a vector"),
        ({"labels": []}, "labels must be a vector"),
        ({"neighbors": table(2)}, "neighbors must be at least 3 nearest classes .* got 2"),
        ({"neighbors": table()[:5]}, r"neighbors must be integers of shape \[12, n\]"),
        ({"neighbors": table().astype(float)}, r"neighbors must be integers .* float64"),
        ({"neighbors": table() - 1}, "neighbors must be integers from 0 to 11, but got .*-1"),
        ({"neighbors": np.zeros((CLASSES, 4), int)}, "neighbors must be different .* row 0"),
        ({"neighbors": table() * 0 + np.arange(6)}, "neighbors must be .* row 0"),
        ({"seed": 2**63}, "seed must be"),
    ],
)
def test_mistakes_name_the_argument(change, message):
    arguments = {
        "labels": shuffled_labels(),
        "classes_per_batch": 7,
        "images_per_class": 2,
        "neighbors": table(),
        **change,
    }
    with pytest.raises((ValueError, TypeError), match=message):
        HardClassSampler(**arguments)


def test_mistakes_of_a_refresh_leave_the_tables_unchanged():
    sampler = HardClassSampler(shuffled_labels(), 7, 2, table())
    with pytest.raises(ValueError, match="first_step must be above 0, .* got 0"):
        sampler.refresh(table(), first_step=0)
    with pytest.raises(ValueError, match=r"neighbors must be of shape \[12, 6\]"):
        sampler.refresh(table(5), first_step=3)
    other = HardClassSampler(np.arange(9), 7, 2, table(classes=9)).state()
    with pytest.raises(ValueError, match=r"neighbors must be integers of shape \[12, n\]"):
        sampler.restore(other)
    np.testing.assert_array_equal(sampler.state()["neighbors"], [table()])
