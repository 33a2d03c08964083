"""Labeled tf.data datasets as tables, and in balanced batches."""

import tracemalloc

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_dml._common.errors import ArgumentError, ArgumentTypeError
from keras_dml.callbacks import RetrievalEvaluation
from keras_dml.losses import MultiSimilarityLoss
from pipelines import (
    BalancedSampler,
    ImageTable,
    RandomSampler,
    balanced,
    evaluation_batches,
    table_from_dataset,
    training_batches,
)

ROWS = np.random.default_rng(0).normal(size=(30, 4, 3)).astype("float32")
LABELS = np.random.default_rng(1).permutation(np.repeat(np.arange(6), 5))


def given(labels=LABELS, rows=ROWS):
    return tf.data.Dataset.from_tensor_slices((rows, labels))


@pytest.mark.parametrize("batch_size", [None, 1, 7])
@pytest.mark.parametrize(
    "labels",
    [
        LABELS,
        LABELS + 2**40,
        LABELS.astype("float32"),
        [f"Klasse {n} ä" for n in LABELS],
        LABELS[:, None],
        LABELS.astype("uint8"),
    ],
    ids=["ids", "large ids", "floats", "strings", "a column", "uint8"],
)
def test_each_element_once_with_its_class(labels, batch_size):
    if np.ndim(labels) == 2 and batch_size is None:
        batch_size = 4
    dataset = given(labels)
    table = table_from_dataset(dataset if batch_size is None else dataset.batch(batch_size))
    np.testing.assert_array_equal(table.arrays, ROWS)
    np.testing.assert_array_equal(table.labels, LABELS)
    assert table.num_classes == 6


def test_batches_equal_those_from_the_sampler():
    batches = balanced(given().batch(8), 3, 2, seed=5, num_steps=9)
    sampler = BalancedSampler(LABELS, 3, 2, seed=5)
    found = list(batches.as_numpy_iterator())
    assert len(found) == len(batches) == 9
    assert batches.steps_per_epoch == sampler.steps_per_epoch == 5
    assert batches.class_names == tuple("012345")
    for step, (x, ids) in enumerate(found):
        np.testing.assert_array_equal(x, ROWS[sampler(step)])
        np.testing.assert_array_equal(ids, LABELS[sampler(step)])


def test_memory_does_not_grow_with_the_dataset():
    """The rows are in a temporary file: 256 rows of 1 MB, of which a batch has 4."""
    rows = np.ones((2**18,), "float32")
    large = tf.data.Dataset.range(256).map(lambda row: (rows * tf.cast(row, "float32"), row % 4))
    tracemalloc.start()
    try:
        batches = balanced(large, 2, 2, num_steps=2)
        labels_of = [(ids, x[:, -1].numpy() % 4) for x, ids in batches]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40 * 2**20
    for ids, expected in labels_of:
        np.testing.assert_array_equal(ids, expected)


def test_image_dataset_from_directory(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("ape", "bear", "cow"):
        (tmp_path / name).mkdir()
        for number in range(4):
            pixels = rng.integers(0, 256, (9, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    dataset = keras.utils.image_dataset_from_directory(
        tmp_path, image_size=(6, 6), batch_size=5, shuffle=False, verbose=False
    )
    batches = balanced(dataset, 2, 3)
    assert batches.class_names == ("ape", "bear", "cow") and batches.steps_per_epoch == 2
    x, ids = next(batches.as_numpy_iterator())
    assert x.shape == (6, 6, 6, 3) and sorted(np.bincount(ids, minlength=3)) == [0, 3, 3]
    whole = np.concatenate([x for x, _ in dataset.as_numpy_iterator()])
    assert all((whole[4 * n : 4 * n + 4] == row).all((1, 2, 3)).any() for row, n in zip(x, ids))


@pytest.mark.slow
def test_float_rows_need_no_transform():
    table = ImageTable.from_arrays(ROWS.astype("float64"), LABELS)
    sampler = RandomSampler(len(table), 10, seed=3)
    inputs = keras.Input((4, 3))
    model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(inputs)))
    model.compile("adam", MultiSimilarityLoss())
    validation = evaluation_batches(table, batch_size=8, labels=True)
    model.fit(
        training_batches(table, sampler),
        epochs=1,
        steps_per_epoch=3,
        validation_data=validation,
        callbacks=[evaluation := RetrievalEvaluation(validation)],
        verbose=0,
    )
    rows = np.concatenate(list(evaluation_batches(table, batch_size=8).as_numpy_iterator()))
    np.testing.assert_array_equal(rows, table.arrays)
    labels = np.concatenate([ids for _, ids in validation.as_numpy_iterator()])
    np.testing.assert_array_equal(labels, LABELS)
    same = RetrievalEvaluation((ROWS, LABELS), embedding_model=model).evaluate()
    assert evaluation.evaluate() == pytest.approx(same, rel=1e-5)


@pytest.mark.parametrize(
    ("dataset", "kind", "said"),
    [
        (ROWS, ArgumentTypeError, "dataset must be a tf.data.Dataset, but got an array"),
        (given().repeat(), ArgumentError, "dataset must be finite.*repeat"),
        (given().take(0), ArgumentError, "dataset must contain.*empty"),
        (tf.data.Dataset.from_tensor_slices(ROWS), ArgumentTypeError, r"\(x, label\).*elements of"),
        (given(np.eye(6, dtype="float32")[LABELS]).batch(4), ArgumentError, "label_mode='int'"),
        (given(LABELS + 0.5), ArgumentTypeError, "labels must be .*whole numbers .*but got "),
        (
            tf.data.Dataset.from_generator(
                lambda: ((np.zeros(n, "float32"), n) for n in (2, 3)),
                output_signature=(tf.TensorSpec([None]), tf.TensorSpec([], tf.int32)),
            ),
            ArgumentError,
            r"one shape, but got \(2,\) and \(3,\)",
        ),
        (
            given([f"{n}" for n in range(30)], np.array(["a"] * 30)),
            ArgumentTypeError,
            "dataset must contain.*strings as x",
        ),
    ],
)
def test_invalid_datasets_are_refused(dataset, kind, said):
    with pytest.raises(kind, match=said):
        balanced(dataset, 2, 2)


def test_images_in_files_need_a_transform():
    table = ImageTable.from_paths(["a.png", "b.png"], ["a", "b"])
    for batches in (
        lambda: training_batches(table, RandomSampler(2, 1)),
        lambda: evaluation_batches(table),
    ):
        with pytest.raises(ArgumentError, match="transform must be set.*EvaluationTransform"):
            batches()


def test_names_that_are_not_utf_8_stay_different_classes():
    names = [b"\xff", b"\xfe", b"a", b"\xff"]
    table = table_from_dataset(tf.data.Dataset.from_tensor_slices((np.eye(4), names)))
    assert table.num_classes == 3 and table.labels[0] == table.labels[3]
