"""Batches of features instead of images, and of augmented views of the images."""

import numpy as np
import pytest
import tensorflow as tf

from pipelines import ImageTable, RandomSampler, TrainTransform
from pipelines.batches import evaluation_batches, feature_batches, training_batches

LABELS = np.arange(23) // 3
SAMPLER = RandomSampler(23, 6, seed=5)
VIEWS = np.arange(3 * 23 * 2, dtype="float32").reshape(3, 23, 2)


def collect(dataset):
    return [tuple(part.numpy() for part in batch) for batch in dataset]


def test_batch_has_one_view_of_each_sampled_row():
    batches = collect(feature_batches(VIEWS, LABELS, SAMPLER, seed=1, num_steps=40))
    assert len(batches) == 40
    drawn = np.zeros(3, int)
    for step, (features, labels) in enumerate(batches):
        rows = SAMPLER(step)
        np.testing.assert_array_equal(labels, LABELS[rows])
        view, row, _ = np.unravel_index(features[:, 0].astype(int), VIEWS.shape)
        np.testing.assert_array_equal(row, rows)
        np.testing.assert_array_equal(features, VIEWS[view, row])
        drawn += np.bincount(view, minlength=3)
    assert drawn.min() > 50


@pytest.mark.parametrize(("pipelines", "replicas"), [(1, 1), (1, 2), (2, 2), (2, 6), (3, 6)])
def test_replicas_and_later_starts_get_the_same_batches(pipelines, replicas):
    whole = collect(feature_batches(VIEWS, LABELS, SAMPLER, seed=1, num_steps=5))
    fed = replicas // pipelines
    parts = [
        collect(
            feature_batches(
                VIEWS, LABELS, SAMPLER, 1, 2, 3, tf.distribute.InputContext(pipelines, i, replicas)
            )
        )
        for i in range(pipelines)
    ]
    for step, expected in enumerate(whole[2:]):
        of_step = [batch for part in parts for batch in part[step * fed : (step + 1) * fed]]
        for number, array in enumerate(expected):
            together = np.concatenate([batch[number] for batch in of_step])
            np.testing.assert_array_equal(together, array)


def test_feature_maps_and_memory_maps(tmp_path):
    maps = np.random.default_rng(0).normal(size=(23, 2, 3, 4)).astype("float32")
    np.save(tmp_path / "maps.npy", maps)
    on_disk = np.load(tmp_path / "maps.npy", mmap_mode="r")
    batches = feature_batches([on_disk], LABELS, SAMPLER, num_steps=1)
    assert batches.element_spec[0] == tf.TensorSpec([6, 2, 3, 4], tf.float32)
    np.testing.assert_array_equal(collect(batches)[0][0], maps[SAMPLER(0)])


@pytest.mark.parametrize("views", [[], [VIEWS[0], VIEWS[0, :5]], [VIEWS[0, :5]], [VIEWS[0, :, 0]]])
def test_features_need_one_row_per_label(views):
    with pytest.raises(ValueError, match=r"features must be one array \[23, ...\] for each view"):
        feature_batches(views, LABELS, SAMPLER)


def test_each_image_once_with_its_augmentation():
    pixels = np.random.default_rng(0).integers(0, 256, (23, 20, 20, 3), dtype=np.uint8)
    table = ImageTable.from_arrays(pixels, LABELS)
    transform = TrainTransform(8, 12, jitter=(0.2, 0.2, 0.2, 0.1))
    # The first batch of a training, with known seeds.
    seeds = np.random.SeedSequence((4, 0)).generate_state(12, np.uint64).view(np.int64)
    images, _ = collect(training_batches(table, SAMPLER, transform, seed=4, num_steps=1))[0]
    chosen = table.select(SAMPLER(0))
    found = evaluation_batches(chosen, transform, 4, seeds=seeds.reshape(-1, 2))
    np.testing.assert_array_equal(np.concatenate([batch.numpy() for batch in found]), images)
    with pytest.raises(ValueError, match=r"seeds must be integers of shape \[23, 2\]"):
        evaluation_batches(table, transform, 4, seeds=seeds)
