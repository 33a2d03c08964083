"""NumPy numbers as arguments of transforms, and labels of all kinds."""

import numpy as np
import pytest

import pipelines
from keras_dml._common.errors import ArgumentError
from pipelines.samplers import BalancedSampler
from pipelines.table import ImageTable


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


IDS = np.array([0, 0, 1, 1, 2, 2])
TEXTS = np.array(["a", "b", "c"])[IDS]


@pytest.mark.parametrize(
    "labels",
    [IDS + 2.0**40, IDS + 2**40, np.ma.array(IDS, mask=False), TEXTS, TEXTS.astype("S")],
    ids=lambda labels: labels.dtype,
)
def test_labels_of_all_types_give_the_same_table(labels):
    np.testing.assert_array_equal(ImageTable.from_encoded([b"x"] * 6, labels).labels, IDS)
    expected = BalancedSampler(IDS, 2, 2)(1)
    np.testing.assert_array_equal(BalancedSampler(labels, 2, 2)(1), expected)


@pytest.mark.parametrize(
    "labels, message",
    [
        (IDS / 2, "whole numbers .* but got 0.5 in row 2"),
        (np.where(IDS, IDS, np.nan), "but got nan in row 0"),
        (["a", 1] * 3, "only whole numbers, only str"),
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
