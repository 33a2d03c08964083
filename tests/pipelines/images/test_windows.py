import numpy as np
import pytest
import tensorflow as tf
import torchvision_model
from scipy import stats

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


def by_tensorflow(height, width, count):
    """Return `count` windows from different seeds, int [count, 4]."""

    @tf.function
    def draw(seeds):
        def one(seed):
            uniform = tf.random.stateless_uniform([22], seed)
            return tf.concat(area_window([height, width], uniform, *LIMITS), 0)

        return tf.map_fn(one, seeds, fn_output_signature=tf.float32)

    return draw(tf.constant([[number, 5] for number in range(count)])).numpy().astype(float)


def by_the_model(height, width, count):
    rng = np.random.default_rng(1)
    draws = [
        torchvision_model.area_window(height, width, rng.random(22), *LIMITS) for _ in range(count)
    ]
    return np.array(draws, float)


LIMITS = (0.16, 1.0), (3 / 4, 4 / 3)


@pytest.mark.parametrize(("height", "width"), [(256, 341), (128, 400)])
def test_distributions_of_area_windows(height, width):
    """Compare area, aspect, position, and the rate of failed attempts with a model."""
    ours, theirs = (draw(height, width, 2500) for draw in (by_tensorflow, by_the_model))

    def central(windows):
        y, x, h, w = windows.T
        whole = (h == height) if width > height * LIMITS[1][1] else (w == width)
        return whole & (y == (height - h) // 2) & (x == (width - w) // 2)

    for quantity in (
        lambda y, x, h, w: h * w,
        lambda y, x, h, w: w / h,
        lambda y, x, h, w: y / np.maximum(height - h, 1),
        lambda y, x, h, w: x / np.maximum(width - w, 1),
        lambda y, x, h, w: h,
        lambda y, x, h, w: w,
    ):
        assert stats.ks_2samp(quantity(*ours.T), quantity(*theirs.T)).pvalue > 1e-3
    shares = [central(windows).mean() for windows in (ours, theirs)]
    assert shares[0] == pytest.approx(shares[1], abs=0.02)
    # If all attempts fit, areas are uniform, and aspects are uniform in the logarithm.
    fraction, logarithm = (
        ours[:, 2] * ours[:, 3] / (height * width),
        np.log(ours[:, 3] / ours[:, 2]),
    )
    small = fraction < 0.23
    assert stats.kstest(fraction[small], stats.uniform(0.16, 0.07).cdf).pvalue > 1e-3
    assert stats.kstest(logarithm[small], stats.uniform(-0.2877, 0.5754).cdf).pvalue > 1e-3
