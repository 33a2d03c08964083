import numpy as np
import pytest
import tensorflow as tf
import torchvision_model

from pipelines.images.windows import area_window


@pytest.mark.parametrize(
    "height,width,area,aspect",
    [
        (256, 341, (0.16, 1.0), (3 / 4, 4 / 3)),
        (256, 256, (0.16, 1.0), (1.0, 1.0)),
        (40, 300, (0.5, 1.0), (3 / 4, 4 / 3)),  # rarely fits: the central crop with less width
        (300, 40, (0.5, 1.0), (3 / 4, 4 / 3)),  # the same with less height
        (50, 50, (0.9, 1.0), (0.5, 2.0)),
        (32, 32, (1.0, 1.0), (0.5, 0.5)),  # never fits
    ],
)
def test_area_windows_follow_the_definition(height, width, area, aspect):
    rng = np.random.default_rng(0)
    draw = tf.function(lambda uniform: area_window([height, width], uniform, area, aspect))
    differ = 0
    for _ in range(300):
        uniform = rng.random(22, np.float32)
        window = tuple(np.concatenate(draw(uniform)).tolist())
        expected = torchvision_model.area_window(height, width, uniform.tolist(), area, aspect)
        differ += window != expected
        assert window[0] >= 0 and window[0] + window[2] <= height
        assert window[1] >= 0 and window[1] + window[3] <= width
    assert differ <= 3  # a length near a half can round differently in float32


@pytest.mark.parametrize("size", [(1, 1), (1, 400), (400, 1)])
def test_area_windows_of_thin_images_are_not_empty(size):
    for last in (0.0, 0.99999994):
        window = area_window(size, tf.fill([22], last), (0.16, 1.0), (3 / 4, 4 / 3))
        window = np.concatenate(window)
        assert (window[2:] >= 1).all()
        assert (window[:2] >= 0).all() and (window[:2] + window[2:] <= size).all()
