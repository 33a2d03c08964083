"""Batches without TensorFlow, compared with tf.data number by number, and lazy imports."""

import pickle
import re
import time

import keras
import numpy as np
import pytest
from image_files import encode, readable_files, smooth
from without import run_without

import pipelines
from keras_dml._common.errors import ArgumentError
from pipelines.images.transforms import EvaluationTransform, TrainTransform

LABELS = np.repeat(np.arange(7), 4)
SIDE = 12
PLAIN = TrainTransform(SIDE, 16, crop="none", flip=False)
FILES = readable_files(26, 20)
JPEG = FILES["jpeg"]


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / f"{number}.jpg" for number in range(len(LABELS))]
    for number, path in enumerate(paths):
        path.write_bytes(encode(smooth(26, 20, seed=number), "JPEG"))
    return pipelines.ImageTable.from_paths(paths, LABELS)


def sampler_of(seed):
    return pipelines.BalancedSampler(LABELS, 3, 2, seed)


def with_tf_data(*arguments, **options):
    return list(pipelines.training_batches(*arguments, **options).as_numpy_iterator())


@pytest.mark.parametrize("seed", [0, 2024])
@pytest.mark.parametrize("path", ["PyDataset", "Grain"])
def test_rows_of_arrays_equal_tf_data(seed, path):
    table = pipelines.ImageTable.from_arrays(np.arange(28 * 5.0).reshape(28, 5), LABELS)
    sampler = sampler_of(seed)
    if path == "Grain":
        grain = pytest.importorskip("grain")
        source = pipelines.BatchSource(table, sampler, seed=seed, start_step=2, num_steps=9)
        threads = grain.ReadOptions(num_threads=3)
        batches = list(grain.MapDataset.source(source).to_iter_dataset(threads))
    else:
        dataset = pipelines.BalancedDataset(table, sampler, seed=seed, start_step=2)
        batches = [dataset[index] for index in range(9)]
    expected = with_tf_data(table, sampler, seed=seed, start_step=2, num_steps=9)
    assert len(batches) == len(expected) == 9
    for batch, other in zip(batches, expected):
        for ours, theirs in zip(batch, other, strict=True):
            np.testing.assert_array_equal(ours, theirs, strict=True)


def test_images_without_random_choices_equal_tf_data_up_to_rounding(files):
    expected = with_tf_data(files, sampler_of(1), PLAIN, num_steps=4)
    batches = pipelines.BatchSource(files, sampler_of(1), PLAIN, num_steps=4)
    for (images, labels), (expected_images, expected_labels) in zip(batches, expected):
        np.testing.assert_array_equal(labels, expected_labels)
        assert images.dtype == np.float32 and images.shape == expected_images.shape
        np.testing.assert_allclose(images, expected_images, atol=1.5)


def test_each_slot_gets_the_seed_of_tf_data(files):
    seeds = []

    def record(source, seed):
        seeds.append(seed)
        return np.zeros(1)

    pipelines.BatchSource(files, sampler_of(0), record, seed=5)[3]
    expected = np.random.SeedSequence((5, 3)).generate_state(12, np.uint64).reshape(6, 2)
    np.testing.assert_array_equal(seeds, expected)


@pytest.mark.parametrize("crop", ["area", "fixed", "none"])
def test_augmentation_depends_on_seed_step_and_slot_only(files, crop):
    transform = TrainTransform(SIDE, 16, crop=crop, jitter=(0.4, 0.4, 0.4, 0.1))
    batches = pipelines.BatchSource(files, sampler_of(0), transform, seed=3, workers=3)
    # Pickled, as for another process.
    np.testing.assert_array_equal(batches[4][0], pickle.loads(pickle.dumps(batches))[4][0])
    same = [transform.with_pillow(JPEG, [0, number]) for number in range(20)]
    assert len({image.tobytes() for image in same}) == 20
    assert all(image.shape == (SIDE, SIDE, 3) for image in same)
    assert np.min(same) >= 0 and np.max(same) <= 255


def test_flip_mirrors_half_of_the_images():
    transform = TrainTransform(SIDE, 16, crop="none")
    plain = PLAIN.with_pillow(JPEG, [0, 0])
    outputs = [transform.with_pillow(JPEG, [number, 1]) for number in range(200)]
    flipped = [output for output in outputs if not np.array_equal(output, plain)]
    assert all(np.array_equal(output, plain[:, ::-1]) for output in flipped)
    assert 70 < len(flipped) < 130


def test_area_crops_have_the_areas_and_aspects_of_the_definition():
    from pipelines.images.pillow_transforms import _area_window

    transform = TrainTransform(8, area=(0.2, 0.5), aspect=(0.5, 2.0))
    for number in range(200):
        y, x, height, width = _area_window((90, 120), transform, np.random.default_rng(number))
        assert 0 <= y <= 90 - height and 0 <= x <= 120 - width
        assert 0.19 < height * width / (90 * 120) < 0.51
        assert 0.48 < width / height < 2.1


SOURCES = FILES | {
    "pixels": np.arange(20 * 30, dtype=np.uint8).reshape(20, 30, 1) // 3,
    "box": (FILES["png"], [3, -2, 12, 15]),
    **{f"box in {name}": (FILES[name], [2, 4, 15, 11]) for name in FILES if "jpeg_turned" in name},
}


@pytest.mark.parametrize("name", SOURCES)
def test_evaluation_equals_tensorflow_up_to_rounding(name):
    source = SOURCES[name]
    for transform in (EvaluationTransform(SIDE, 14), EvaluationTransform(11, (11, 13))):
        np.testing.assert_allclose(transform.with_pillow(source), transform(source), atol=1.5)


def test_an_unreadable_image_is_named(tmp_path):
    (tmp_path / "bad.jpg").write_bytes(JPEG[:-100])
    sampler = pipelines.RandomSampler(1, 1)
    for name, reason in (("bad.jpg", "a damaged image"), ("no.jpg", "No such file")):
        table = pipelines.ImageTable.from_paths([tmp_path / name], [0])
        with pytest.raises(ArgumentError, match=f"{name}: {reason}"):
            pipelines.BatchSource(table, sampler, PLAIN)[0]
    with pytest.raises(ArgumentError, match="transform"):
        pipelines.BatchSource(table, sampler)
    with pytest.raises(ArgumentError, match="more than 10 pixels"):
        TrainTransform(8, max_pixels=10).with_pillow(JPEG, [0, 0])


@pytest.mark.any_backend
def test_fit_trains_on_the_steps_in_order():
    table = pipelines.ImageTable.from_arrays(np.arange(28.0, dtype="float32")[:, None], LABELS)
    sampler = sampler_of(1)

    def mean_row(labels, rows):
        return keras.ops.mean(rows)

    model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.0), mean_row)
    dataset = pipelines.BalancedDataset(table, sampler, start_step=2)
    history = model.fit(dataset, epochs=3, steps_per_epoch=2, verbose=0).history
    # Keras logs the mean of an epoch.
    means = [np.mean([sampler(step), sampler(step + 1)]) for step in (2, 4, 6)]
    np.testing.assert_allclose(history["loss"], means, rtol=1e-5)


def fitted_steps(batches, sampler, **options):
    """Return the mean rows of the epochs, which only the steps of these numbers have."""

    def mean_row(labels, rows):
        return keras.ops.mean(rows)

    model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.0), mean_row)
    return model.fit(batches, verbose=0, **options).history["loss"]


def means(sampler, *epochs):
    return [np.mean([sampler(step) for step in steps]) for steps in epochs]


ROWS = pipelines.ImageTable.from_arrays(np.arange(28.0, dtype="float32")[:, None], LABELS)


@pytest.mark.any_backend
def test_epochs_of_a_balanced_dataset_end_and_continue():
    sampler = sampler_of(1)  # of 4 steps per epoch
    assert sampler.steps_per_epoch == 4
    dataset = pipelines.BalancedDataset(ROWS, sampler)
    assert dataset.num_batches == 4
    expected = means(sampler, range(4), range(4, 8), range(8, 12))
    np.testing.assert_allclose(fitted_steps(dataset, sampler, epochs=3), expected, rtol=1e-5)
    # Another fit continues.
    more = means(sampler, range(12, 16))
    np.testing.assert_allclose(fitted_steps(dataset, sampler), more, rtol=1e-5)
    # Shorter epochs continue within the pass.
    dataset = pipelines.BalancedDataset(ROWS, sampler, start_step=1, steps_per_epoch=6)
    losses = fitted_steps(dataset, sampler, epochs=3, steps_per_epoch=3)
    expected = means(sampler, range(1, 4), range(4, 7), range(7, 10))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


@pytest.mark.any_backend
def test_a_sampler_without_epochs_has_no_end():
    def sampler(step):
        return np.arange(step, step + 2)

    sampler.batch_size = 2
    dataset = pipelines.BalancedDataset(ROWS, sampler)
    assert dataset.num_batches is None
    losses = fitted_steps(dataset, sampler, epochs=2, steps_per_epoch=5)
    np.testing.assert_allclose(losses, means(sampler, range(5), range(5, 10)), rtol=1e-5)
    finite = pipelines.BalancedDataset(ROWS, sampler, steps_per_epoch=3)
    losses = fitted_steps(finite, sampler, epochs=2)
    np.testing.assert_allclose(losses, means(sampler, range(3), range(3, 6)), rtol=1e-5)


@pytest.mark.any_backend
def test_epochs_of_tf_data_end_and_continue():
    tf = pytest.importorskip("tensorflow")
    sampler = sampler_of(1)

    def with_transform(source, seed):
        return tf.cast(source, tf.float32)

    pixels = np.arange(28, dtype="uint8")[:, None, None, None]
    images = pipelines.ImageTable.from_arrays(pixels, LABELS)
    for batches in (
        pipelines.training_batches(ROWS, sampler, steps_per_epoch=4),
        pipelines.training_batches(images, sampler, with_transform, steps_per_epoch=4),
        pipelines.balanced(tf.data.Dataset.from_tensor_slices((ROWS.arrays, LABELS)), 3, 2, seed=1),
    ):
        expected = means(sampler, range(4), range(4, 8), range(8, 12))
        np.testing.assert_allclose(
            np.ravel(fitted_steps(batches, sampler, epochs=3)), expected, rtol=1e-5
        )


@pytest.mark.slow
def test_tf_data_and_a_py_dataset_have_the_same_epochs():
    sampler = sampler_of(3)
    batches = pipelines.training_batches(ROWS, sampler, start_step=2, steps_per_epoch=4)
    dataset = pipelines.BalancedDataset(ROWS, sampler, start_step=2)
    epochs = [*batches.as_numpy_iterator(), *batches.as_numpy_iterator()]
    others = [*dataset.get_numpy_iterator(), *dataset.get_numpy_iterator()]
    for step, (one, other) in enumerate(zip(epochs, others, strict=True)):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])
        np.testing.assert_array_equal(one[0].ravel(), sampler(step + 2))
    # An iteration that is not complete begins again, although buffers may hold its last batch.
    next(iter(batches))
    np.testing.assert_array_equal(next(iter(batches))[0].numpy().ravel(), sampler(10))
    short = pipelines.training_batches(ROWS, sampler, steps_per_epoch=2)
    for _ in range(20):
        assert next(iter(short))[0].numpy().ravel().tolist() == sampler(0).tolist()
        time.sleep(0.002)
    with pytest.raises(ValueError, match="num_steps must be None with steps_per_epoch"):
        pipelines.training_batches(ROWS, sampler, num_steps=3, steps_per_epoch=4)
    with pytest.raises(ValueError, match="steps_per_epoch must be"):
        pipelines.BalancedDataset(ROWS, sampler, steps_per_epoch=0)


WORKS = """
import sys
import numpy as np
import pipelines

assert "glyphs" in pipelines.DATASETS
table = pipelines.ImageTable.from_arrays(np.zeros([6, 4, 4, 1], np.uint8), list("aabbcc"))
pipelines.split_by_class(table, 1)
pipelines.RandomSampler(6, 6)(0)
pipelines.BalancedSampler(table.labels, 2, 2)(3)
try:
    pipelines.load_dataset("nothing")
except ValueError as error:
    print(error)
assert not {"tensorflow", "tqdm", "keras"} & set(sys.modules)
"""
IMAGES = """
import io
import sys
import numpy as np
import pipelines
from PIL import Image

file = io.BytesIO()
Image.fromarray(np.full([20, 30, 3], 7, np.uint8)).save(file, "JPEG")
table = pipelines.ImageTable.from_encoded([file.getvalue()] * 6, list("aabbcc"))
sampler = pipelines.BalancedSampler(table.labels, 2, 2)
assert not {"tensorflow", "keras"} & set(sys.modules)
transform = pipelines.TrainTransform(8, jitter=(0.1, 0.1, 0.1, 0.1))
images, labels = pipelines.BalancedDataset(table, sampler, transform)[5]
assert images.shape == (4, 8, 8, 3) and len(set(labels)) == 2
assert "tensorflow" not in sys.modules
"""
NAMED = """
import pipelines
def call():
    pipelines.TrainTransform(8)(b"", [0, 0])

for use in (call, *(lambda name=name: getattr(pipelines, name)
                    for name in ("evaluation_batches", "find_bad_images", "training_batches"))):
    try:
        use()
    except ImportError as error:
        print(f"{type(error).__name__}: {error}")
"""


def printed(program, folder, blocked=(), **environment):
    done = run_without(blocked, ["-c", program], folder, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tables_do_not_import_an_installed_tensorflow(tmp_path):
    assert printed(WORKS, tmp_path).startswith("dataset must be one of cars, ")


@pytest.mark.slow
def test_images_are_decoded_and_augmented_without_tensorflow(tmp_path):
    assert printed(IMAGES, tmp_path, ["tensorflow"], KERAS_BACKEND="jax") == ""


def test_missing_tensorflow_is_a_one_line_error(tmp_path):
    lines = printed(NAMED, tmp_path, ["tensorflow"]).splitlines()
    assert len(lines) == 4
    for line in lines:
        pattern = r"MissingExtraError: .+ needs tensorflow: .*keras-dml\[tensorflow\]'"
        assert re.fullmatch(pattern, line), line


def test_lazy_names_are_listed():
    assert set(pipelines.__all__) <= set(dir(pipelines))
    with pytest.raises(AttributeError, match="'pipelines' has no attribute 'training_batch'"):
        pipelines.training_batch  # noqa: B018
