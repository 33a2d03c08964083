"""Batches of images, views, and features, for training and evaluation, also on replicas."""

import dataclasses
import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tiers
from PIL import Image

from keras_dml._common.errors import ArgumentError
from pipelines import EvaluationTransform, ImageTable, RandomSampler, TrainTransform
from pipelines.batches import evaluation_batches, feature_batches, training_batches

NUM_IMAGES, BATCH_SIZE, SIDE = 23, 6, 16
TRANSFORM = TrainTransform(SIDE, 20, jitter=(0.2, 0.2, 0.2, 0.1))
LABELS = np.arange(NUM_IMAGES) // 3
SAMPLER = RandomSampler(NUM_IMAGES, BATCH_SIZE, seed=5)


def pictures(channels):
    shape = (NUM_IMAGES, 24, 28, channels)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


ARRAYS = ImageTable.from_arrays(pictures(3), LABELS)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    paths = []
    for number, pixels in enumerate(pictures(3)):
        paths.append(str(folder / f"naïve {number}.png"))
        Image.fromarray(pixels).save(paths[-1])
    return ImageTable.from_paths(paths, LABELS)


@pytest.fixture(
    scope="module",
    params=[
        "arrays",
        pytest.param("files", marks=pytest.mark.slow),
        pytest.param("files in memory", marks=tiers.THOROUGH),
    ],
)
def stored(request, files):
    """Return a table of the pictures."""
    encoded = [Path(path).read_bytes() for path in files.paths]
    in_memory = ImageTable.from_encoded(encoded, LABELS)
    return {"arrays": ARRAYS, "files": files, "files in memory": in_memory}[request.param]


def collect(dataset):
    return [tuple(part.numpy() for part in batch) for batch in dataset]


def assert_same_bits(batches, others):
    assert len(batches) == len(others)
    for batch, other in zip(batches, others):
        for part, other_part in zip(batch, other):
            np.testing.assert_array_equal(part, other_part)


def test_batch_has_the_rows_of_its_sampler(stored):
    """Compare each slot, without augmentation, with its row of the table."""
    plain = TrainTransform(SIDE, 20, crop="none", flip=False)
    batches = training_batches(stored, SAMPLER, plain, num_steps=5)
    images, labels = batches.element_spec
    assert images == tf.TensorSpec([BATCH_SIZE, SIDE, SIDE, 3], tf.float32)
    assert labels == tf.TensorSpec([BATCH_SIZE], tf.int64)
    assert len(collect(batches)) == batches.cardinality() == 5
    endless = training_batches(stored, SAMPLER, plain)
    assert endless.cardinality() == tf.data.INFINITE_CARDINALITY
    for step, (images, labels) in enumerate(collect(batches)):
        rows = SAMPLER(step)
        np.testing.assert_array_equal(labels, LABELS[rows])
        expected = [EvaluationTransform(SIDE, 20)(image) for image in ARRAYS.arrays[rows]]
        np.testing.assert_allclose(images, expected, atol=1e-3)


def test_evaluation_returns_each_image_once_in_row_order(stored):
    transform = EvaluationTransform(SIDE, 20)
    dataset = evaluation_batches(stored, transform, batch_size=5)
    assert dataset.element_spec == tf.TensorSpec([None, SIDE, SIDE, 3], tf.float32)
    batches = list(dataset)
    assert dataset.cardinality() == len(batches) == 5
    assert [len(batch) for batch in batches] == [5, 5, 5, 5, 3]
    expected = [transform(image) for image in ARRAYS.arrays]
    np.testing.assert_allclose(tf.concat(batches, 0), expected, atol=1e-3)


@pytest.mark.slow
def test_images_are_cropped_to_boxes_first(stored):
    """Training and evaluation equal those of a table of cropped images."""
    boxes = np.tile([3, -2, 18, 17], (NUM_IMAGES, 1))  # two columns are outside the image
    cut = ImageTable.from_arrays(ARRAYS.arrays[:, 3:21, :15], LABELS)
    boxed = dataclasses.replace(stored, boxes=boxes)
    for ours, expected in (
        (training_batches(one, SAMPLER, TRANSFORM, seed=3, num_steps=2) for one in (boxed, cut)),
        (evaluation_batches(one, EvaluationTransform(SIDE, 20), 10) for one in (boxed, cut)),
    ):
        assert ours.element_spec == expected.element_spec
        for batch, other in zip(ours, expected, strict=True):
            for part, other_part in zip(tf.nest.flatten(batch), tf.nest.flatten(other)):
                np.testing.assert_allclose(part, other_part, atol=1e-3)


@pytest.mark.slow
def test_bad_file_is_an_error_of_its_batch(files, tmp_path):
    paths = files.paths.astype(object)
    paths[7] = str(tmp_path / "bad.jpg")
    Path(paths[7]).write_bytes(b"no image")
    table = ImageTable.from_paths(list(paths), files.labels)
    in_order = Rows(4, lambda step: 4 * step + np.arange(4))
    batches = iter(training_batches(table, in_order, TRANSFORM, num_steps=3))
    next(batches)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not a JPEG, PNG"):
        next(batches)


class Rows:
    """A user-defined sampler."""

    def __init__(self, batch_size, rows):
        self.batch_size, self.rows = batch_size, rows

    def __call__(self, step):
        return self.rows(step)


@pytest.mark.parametrize(
    ("sampler", "received"),
    [
        (RandomSampler(1000, 4), r"from 0 to 5.* but got row \d+ at step 0"),
        (Rows(2, lambda step: np.array([0, -1])), "but got row -1 at step 0"),
        (Rows(4, lambda step: np.arange(5)), r"shape \[4\].* shape \(5,\) .* at step 0"),
        (Rows(4, lambda step: np.arange(4.0)), "dtype float64"),
        (Rows(6, lambda step: np.ones(6, bool)), "dtype bool"),
        (Rows(4.0, lambda step: np.arange(4)), "sampler.batch_size must be a whole number"),
        (Rows(0, lambda step: np.arange(0)), "sampler.batch_size must be .*at least 1"),
    ],
)
def test_sampler_with_invalid_rows_is_refused(sampler, received):
    rows, labels = np.eye(6, dtype="float32"), np.arange(6) // 2
    plain = ImageTable.from_arrays(rows, labels)
    with pytest.raises(ArgumentError, match=received):
        training_batches(plain, sampler)
    with pytest.raises(ArgumentError, match=received):
        feature_batches([rows], labels, sampler)


def test_invalid_rows_in_a_later_step_are_an_error_of_its_batch():
    plain = ImageTable.from_arrays(np.eye(6, dtype="float32"), np.arange(6) // 2)
    batches = training_batches(plain, Rows(2, lambda step: np.arange(2) - step), num_steps=2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="but got row -1 at step 1"):
        collect(batches)


def contexts(pipelines, replicas):
    """Test all input pipelines of a strategy."""
    return [tf.distribute.InputContext(pipelines, number, replicas) for number in range(pipelines)]


VIEWS = np.arange(3 * 23 * 2, dtype="float32").reshape(3, 23, 2)
PLACES = [(1, 1), (1, 2), (2, 2), (2, 6), (3, 6)]


@pytest.mark.parametrize(
    ("kind", "pipelines", "replicas"),
    [
        *(("features", *place) for place in PLACES),
        *(pytest.param("images", *place, marks=pytest.mark.slow) for place in [(1, 1), (2, 6)]),
    ],
)
def test_replicas_and_later_starts_get_the_same_batches(kind, files, pipelines, replicas):
    def batches(start_step=0, num_steps=5, context=None):
        more = {"start_step": start_step, "num_steps": num_steps, "input_context": context}
        if kind == "features":
            return collect(feature_batches(VIEWS, LABELS, SAMPLER, seed=1, **more))
        return collect(training_batches(files, SAMPLER, TRANSFORM, seed=3, **more))

    whole = batches()
    parts = [batches(2, 3, context) for context in contexts(pipelines, replicas)]
    fed = replicas // pipelines
    assert {len(part) for part in parts} == {3 * fed}
    for step, expected in enumerate(whole[2:]):
        of_step = [batch for part in parts for batch in part[step * fed : (step + 1) * fed]]
        assert {len(ids) for _, ids in of_step} == {BATCH_SIZE // replicas}
        joined = [np.concatenate(part) for part in zip(*of_step)]
        assert_same_bits([joined], [expected])


# For each input pipeline, the rows of each batch. A missing row is the last one again.
ROWS_OF_PIPELINES = {
    "rest": (3, 2, 6, [
        [[0, 1, 2], [3, 4, 5], [6, 7, 8], [18], [19], [20]],
        [[9, 10, 11], [12, 13, 14], [15, 16, 17], [21], [22], [22]],
    ]),
    "only a rest": (30, 2, 6, [
        [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]],
        [[12, 13, 14, 15], [16, 17, 18, 19], [20, 21, 22, 22]],
    ]),
    "one pipeline": (8, 1, 2, [
        [[*range(8)], [*range(8, 16)], [16, 17, 18, 19], [20, 21, 22, 22]],
    ]),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS_OF_PIPELINES)
def test_evaluation_on_many_replicas_returns_each_image_once(name):
    batch_size, pipelines, replicas, expected = ROWS_OF_PIPELINES[name]
    pixels = np.broadcast_to(np.arange(NUM_IMAGES)[:, None, None, None], (NUM_IMAGES, 8, 8, 3))
    table = ImageTable.from_arrays(pixels.astype("uint8"), np.zeros(NUM_IMAGES, int))
    for context, rows in zip(contexts(pipelines, replicas), expected, strict=True):
        batches = evaluation_batches(table, EvaluationTransform(8), batch_size, context)
        assert [images[:, 0, 0, 0].numpy().tolist() for images in batches] == rows


@pytest.mark.parametrize(
    ("pipelines", "replicas", "message"),
    [
        (1, 4, "multiple of the 4 replicas, but got 6"),
        (2, 1, "input_context must have .* but got 1 replicas and 2 input pipelines"),
        (2, 3, "input_context must have .* but got 3 replicas and 2 input pipelines"),
    ],
)
def test_batches_that_cannot_be_divided_are_refused(pipelines, replicas, message):
    context = contexts(pipelines, replicas)[0]
    with pytest.raises(ValueError, match=message):
        training_batches(ARRAYS, SAMPLER, TRANSFORM, input_context=context)
    if pipelines > 1:
        with pytest.raises(ValueError, match=message):
            evaluation_batches(ARRAYS, EvaluationTransform(SIDE), input_context=context)


@pytest.mark.slow
def test_batches_of_pixels_equal_single_images_on_two_replicas():
    """A lambda hides the transform, so that the pipeline calls it for each image."""
    gray = ImageTable.from_arrays(pictures(1), LABELS)
    [context] = contexts(1, 2)
    fixed, central = TrainTransform(SIDE, (18, 23), crop="fixed"), EvaluationTransform(SIDE, 20)
    trained = [
        training_batches(ARRAYS, SAMPLER, transform, num_steps=3, input_context=context)
        for transform in (fixed, lambda source, seed: fixed(source, seed))
    ]
    evaluated = [
        evaluation_batches(gray, transform, 5, context, labels=True)
        for transform in (central, lambda source: central(source))
    ]
    for ours, expected in (trained, evaluated):
        assert ours.element_spec == expected.element_spec
        assert ours.cardinality() == expected.cardinality()
        assert_same_bits(collect(ours), collect(expected))


def test_batch_has_one_view_of_each_sampled_row():
    batches = collect(feature_batches(VIEWS, LABELS, SAMPLER, seed=1, num_steps=9))
    assert len(batches) == 9
    for step, (features, labels) in enumerate(batches):
        views = np.random.SeedSequence((1, step)).generate_state(BATCH_SIZE, np.uint64) % 3
        rows = SAMPLER(step)
        np.testing.assert_array_equal(labels, LABELS[rows])
        np.testing.assert_array_equal(features, VIEWS[views, rows])


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
    # The first batch of a training, with known seeds.
    seeds = np.random.SeedSequence((4, 0)).generate_state(12, np.uint64).view(np.int64)
    images, _ = collect(training_batches(ARRAYS, SAMPLER, TRANSFORM, seed=4, num_steps=1))[0]
    chosen = ARRAYS.select(SAMPLER(0))
    found = evaluation_batches(chosen, TRANSFORM, 4, seeds=seeds.reshape(-1, 2))
    np.testing.assert_array_equal(np.concatenate(list(found)), images)
    with pytest.raises(ValueError, match=r"seeds must be integers of shape \[23, 2\]"):
        evaluation_batches(ARRAYS, TRANSFORM, 4, seeds=seeds)


@pytest.mark.slow  # garbage collection also visits the objects of other tests
def test_a_table_is_freed_with_its_pipeline():
    table = ImageTable.from_arrays(pictures(3), LABELS)
    (images,) = evaluation_batches(table, EvaluationTransform(24, (24, 28)))
    np.testing.assert_array_equal(images, pictures(3)[:, :, 2:26].astype("float32"))
    gone = weakref.ref(table)
    del table
    gc.collect()
    assert gone() is None
