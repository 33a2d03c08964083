"""A contact sheet of the first batch."""

import numpy as np
import pytest
import tensorflow as tf

from experiments.training.sample_batch import sheet_of


@pytest.mark.parametrize(
    ("count", "shape"), [(1, (4, 4)), (8, (4, 32)), (11, (8, 32)), (99, (16, 32))]
)
def test_small_images_keep_their_pixels(count, shape):
    images = np.zeros([count, 4, 4, 3], np.float32) + np.arange(count)[:, None, None, None]
    sheet = sheet_of(tf.constant(images))
    assert sheet.shape == (*shape, 3) and sheet.dtype == np.uint8
    for number in range(min(count, 32)):
        line, column = divmod(number, 8)
        cell = sheet[4 * line : 4 * line + 4, 4 * column : 4 * column + 4]
        assert (cell == number).all()
    assert count % 8 == 0 or count < 8 or count > 32 or (sheet[-1, -1] == 255).all()


def test_large_images_are_resized():
    sheet = sheet_of(tf.fill([2, 224, 224, 3], 300.0))
    assert sheet.shape == (96, 192, 3) and (sheet == 255).all()
