import numpy as np
import pytest
import tensorflow as tf
import torchvision_model
from scipy import stats

from pipelines.images.jitter import jitter_colors
from pipelines.images.tensorflow_transforms import draw as draw_choices
from pipelines.images.transforms import TrainTransform


@pytest.mark.parametrize(
    "jitter",
    [
        (0.25, 0.25, 0.25, 0),
        (0.3, 0.3, 0.3, 0.1),
        (1.5, 0, 0, 0),
        (0, 0.9, 0, 0),
        (0, 0, 0.9, 0),
        (0, 0, 0, 0.5),
    ],
)
def test_jitter_follows_the_definition(jitter):
    image = np.random.default_rng(0).integers(0, 256, (7, 9, 3)).astype(np.float32)
    rng = np.random.default_rng(2)
    adjust = tf.function(lambda image, uniform: jitter_colors(image, uniform, jitter))
    for _ in range(30):
        uniform = rng.random(8, np.float32)
        expected = torchvision_model.jittered(image, uniform.tolist(), jitter)
        np.testing.assert_allclose(adjust(image, uniform), expected, atol=0.01)


def test_factors_are_uniform_and_all_orders_are_equally_likely():
    """Test the random numbers of a transform. The tests above check their effects."""
    count = 4800
    transform = TrainTransform(8, jitter=(0.3, 0.3, 0.3, 0.1))

    @tf.function
    def draw(seeds):
        return tf.map_fn(
            lambda seed: draw_choices(transform, tf.constant([8, 8]), seed)[3],
            seeds,
            fn_output_signature=tf.float32,
        )

    numbers = draw(tf.constant([[number, 3] for number in range(count)])).numpy()
    places, keys = np.split(numbers, 2, axis=1)
    for kind in range(4):
        assert stats.kstest(places[:, kind], "uniform").pvalue > 1e-3
    orders = np.argsort(keys, axis=1) @ [64, 16, 4, 1]
    _, counts = np.unique(orders, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-3
    assert abs(np.corrcoef(numbers.T) - np.eye(8)).max() < 5 / np.sqrt(count)
