"""The handwritten digits of scikit-learn: ten classes, no download."""

import numpy as np

from keras_dml._common.extras import needing
from pipelines.split import Split
from pipelines.table import ImageTable

TEST_SHARE = 0.2
"""Fraction of each class's images for the test."""

_HIGHEST_LEVEL = 16  # of the stored images
_SEED = 2020  # of the split


def load() -> Split:
    """Built in: handwritten digits. Training and test have the same ten classes.

    1,797 gray images of 8×8 pixels. About a fifth of each class is for the test. The split is
    always the same: it uses a random permutation of each class with a constant seed.

    Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI (1998), the
    part in scikit-learn (`sklearn.datasets.load_digits`).
    """
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
