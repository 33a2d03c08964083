"""The handwritten digits of scikit-learn: ten classes, no download."""

import os

import numpy as np

from keras_dml._common.extras import needing
from pipelines.datasets.files import check_not_given
from pipelines.split import Split
from pipelines.table import ImageTable

TEST_SHARE = 0.2
"""Fraction of each class's images for the test."""

_HIGHEST_LEVEL = 16  # of the stored images
_SEED = 2020  # of the split


def load_split(
    data_dir: str | os.PathLike[str] | None,
    train_classes: int | None = None,
    test_classes: int | None = None,
) -> Split:
    """Built in: handwritten digits. Training and test have the same ten classes.

    1,797 gray images of 8×8 pixels. About a fifth of each class is for the test. The split is
    always the same: it uses a random permutation of each class with a constant seed.

    Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI (1998), the
    part in scikit-learn (`sklearn.datasets.load_digits`).

    Raises:
        ValueError: `data_dir`, `train_classes`, or `test_classes` is set.
    """
    check_not_given("digits", "reads no files", data_dir=data_dir)
    reason = "trains and tests on the same ten classes"
    check_not_given("digits", reason, train_classes=train_classes, test_classes=test_classes)
    # This import takes a second.
    with needing("run", "the dataset digits"):
        from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = np.round(images.reshape(-1, 8, 8, 1) * (255 / _HIGHEST_LEVEL)).astype(np.uint8)
    table = ImageTable.from_arrays(pixels, labels)
    generator = np.random.default_rng(_SEED)
    is_test = np.zeros(len(table), bool)
    for number in range(table.num_classes):
        rows = generator.permutation(np.flatnonzero(table.labels == number))
        is_test[rows[: round(TEST_SHARE * len(rows))]] = True
    return Split(table.select(~is_test), table.select(is_test), same_classes=True)
