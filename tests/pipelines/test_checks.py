"""Argument checks: NumPy scalars are numbers, bools, NaN, and infinity are not."""

import math

import numpy as np
import pytest

import pipelines
from keras_dml._common.checks import check_whole
from keras_dml._common.errors import ArgumentError, ArgumentTypeError
from pipelines.checks import as_labels, plain_numbers
from pipelines.datasets.glyphs import glyphs
from pipelines.samplers import BalancedSampler, RandomSampler
from pipelines.table import ImageTable

TABLE = ImageTable.from_arrays(np.zeros([4, 8, 8, 1], np.uint8), [0, 0, 1, 1])


@pytest.mark.parametrize("kind", [int, np.int64, np.uint8])
def test_integers_of_any_type_are_accepted(kind):
    number = check_whole("size", kind(3), least=1)
    assert (type(number), number) == (int, 3)


@pytest.mark.parametrize("value", [True, np.True_, 2.0, np.float32(2), math.nan, "2", None, [2]])
def test_values_that_are_not_integers_are_refused(value):
    with pytest.raises(ArgumentTypeError) as caught:
        check_whole("size", value, least=1)
    assert str(caught.value) == (
        f"size must be a whole number of at least 1. Received: size={value!r}"
    )


def test_integers_below_the_minimum_are_refused():
    with pytest.raises(ArgumentError, match=r"^size must be .* at least 2\. Received: size="):
        check_whole("size", np.int8(1), least=2)
    with pytest.raises(ArgumentError, match=r"^seed must be .* at least 0\. Received: seed=-1$"):
        check_whole("seed", -1, least=0)
    assert check_whole("seed", -1) == -1


def test_plain_numbers_keep_their_values():
    plain = plain_numbers([np.float32(0.5), 1, np.int64(2), 0.25])
    assert plain == (0.5, 1, 2, 0.25)
    assert [type(number) for number in plain] == [float, int, int, float]
    for wrong in (3, None, "12", [True], [np.True_], [math.nan], [math.inf], [None], ["1"]):
        assert plain_numbers(wrong) is None


def test_transforms_of_numpy_and_python_numbers_are_equal():
    ours = pipelines.TrainTransform(32, (48, 40), area=(0.25, 1.0), jitter=(0.5, 0.0, 0.0, 0.25))
    given = pipelines.TrainTransform(
        np.int64(32),
        (np.int32(48), np.int64(40)),
        area=(np.float32(0.25), np.float64(1.0)),
        jitter=np.array([0.5, 0, 0, 0.25], np.float32),
    )
    # Embedding files are named by this text.
    assert repr(given) == repr(ours)
    evaluation = pipelines.EvaluationTransform(np.int64(32), np.int16(40))
    assert repr(evaluation) == repr(pipelines.EvaluationTransform(32, 40))
    assert evaluation(np.zeros([50, 60, 3], np.uint8)).shape == (32, 32, 3)


@pytest.mark.parametrize(
    ("refused", "name"),
    [
        (lambda: pipelines.TrainTransform(True), "image_size"),
        (lambda: pipelines.TrainTransform(32.0), "image_size"),
        (lambda: pipelines.TrainTransform(32, True), "resize"),
        (lambda: pipelines.TrainTransform(32, (64, math.nan)), "resize"),
        (lambda: pipelines.TrainTransform(32, area=(0.5, math.nan)), "area"),
        (lambda: pipelines.TrainTransform(32, area=(0.5, True)), "area"),
        (lambda: pipelines.TrainTransform(32, area=0.5), "area"),
        (lambda: pipelines.TrainTransform(32, aspect=("a", "b")), "aspect"),
        (lambda: pipelines.TrainTransform(32, jitter=(math.nan, 0, 0, 0)), "jitter"),
        (lambda: pipelines.TrainTransform(32, jitter=0.5), "jitter"),
        (lambda: pipelines.EvaluationTransform(np.True_), "image_size"),
        (lambda: RandomSampler(5, True), "batch_size"),
        (lambda: RandomSampler(5, 2.0), "batch_size"),
        (lambda: RandomSampler(5.5, 2), "num_images"),
        (lambda: RandomSampler(5, 2, seed=0.5), "seed"),
        (lambda: RandomSampler(5, 2)(math.nan), "step"),
        (lambda: BalancedSampler([0, 1], 1, True), "images_per_class"),
        (lambda: pipelines.split_by_class(TABLE, True), "train_classes"),
        (lambda: pipelines.split_by_class(TABLE, 1, 0.5), "test_classes"),
        (lambda: glyphs(True), "num_classes"),
        (lambda: glyphs(1, seed=True), "seed"),
        (lambda: _training(seed=0.5), "seed"),
        (lambda: _training(start_step=True), "start_step"),
        (lambda: _training(num_steps=math.inf), "num_steps"),
        (
            lambda: pipelines.evaluation_batches(TABLE, pipelines.EvaluationTransform(8), True),
            "batch_size",
        ),
    ],
)
def test_values_that_are_not_numbers_are_refused(refused, name):
    with pytest.raises(ArgumentError, match=rf"^{name} must .*Received: {name}="):
        refused()


def _training(**arguments):
    transform = pipelines.TrainTransform(8)
    return pipelines.training_batches(TABLE, RandomSampler(4, 2), transform, **arguments)


IDS = np.array([0, 0, 1, 1, 2, 2])
TEXTS = np.array(["a", "b", "c"])[IDS]


@pytest.mark.parametrize(
    "labels",
    [
        IDS + 2.0**40,
        IDS.astype("float16"),
        IDS.astype(object),
        IDS + 2**40,
        np.ma.array(IDS, mask=False),
        TEXTS,
        TEXTS.tolist(),
        TEXTS.astype(object),
        TEXTS.astype("S"),
        TEXTS.astype("S").astype(object),
        *([TEXTS.astype(np.dtypes.StringDType())] if hasattr(np.dtypes, "StringDType") else []),
    ],
    ids=lambda labels: getattr(labels, "dtype", "list"),
)
def test_labels_of_all_types_give_the_same_table(labels):
    np.testing.assert_array_equal(ImageTable.from_encoded([b"x"] * 6, labels).labels, IDS)
    expected = BalancedSampler(IDS, 2, 2)(1)
    np.testing.assert_array_equal(BalancedSampler(labels, 2, 2)(1), expected)


@pytest.mark.parametrize(
    "labels, message",
    [
        (IDS / 2, "whole numbers. Received: 0.5 in row 2 of labels"),
        (np.where(IDS, IDS, np.nan), "Received: nan in row 0 of labels"),
        (np.where(IDS, IDS, np.inf), "Received: inf in row 0 of labels"),
        (np.float32(IDS + 2**24), "Received: 16777216.0 in row 0 of labels"),
        (np.ma.array(IDS, mask=IDS == 2), "a masked array, 2 of its entries masked"),
        (["a", 1] * 3, "numbers or strings.* in labels"),
        ([b"a", "b"] * 3, "numbers or strings.* in labels"),
        ([2**70] * 6, "beyond 64 bits"),
    ],
)
def test_invalid_labels_are_refused(labels, message):
    for taking in (
        lambda: ImageTable.from_encoded([b"x"] * 6, labels),
        lambda: ImageTable(labels, ("a", "b", "c"), encoded=[b"x"] * 6),
        lambda: BalancedSampler(labels, 2, 2),
    ):
        with pytest.raises(ArgumentError, match=f"labels must be .*{message}"):
            taking()


def test_whole_floats_are_class_numbers():
    assert as_labels("labels", IDS * 1.0).dtype == np.int64
    table = ImageTable(IDS * 1.0, ("a", "b", "c"), encoded=[b"x"] * 6)
    np.testing.assert_array_equal(table.labels, IDS)
