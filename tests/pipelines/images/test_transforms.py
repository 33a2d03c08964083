"""Transforms of images against plain sums and torchvision's definitions."""

import io
import math

import numpy as np
import pytest
import tensorflow as tf
import torchvision_model
from image_files import encode
from PIL import Image
from scipy import stats

from pipelines.images.jitter import jitter_colors
from pipelines.images.tensorflow_transforms import draw, transform_batch
from pipelines.images.tensorflow_transforms import draw as draw_choices
from pipelines.images.transforms import EvaluationTransform, TrainTransform
from pipelines.images.windows import area_window


def noise(height, width, channels=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (height, width, channels), dtype=np.uint8)


def resized_size(height, width, resize):
    if isinstance(resize, tuple):
        return resize
    if height <= width:
        return resize, int(resize * width / height)
    return int(resize * height / width), resize


def sampled(pixels, resized, window, out):
    """Scale a window of the resized image to out x out, as a plain sum over stored pixels.

    Bilinear with antialiasing: a triangle as wide as the step between output pixels, where that is
    more than one stored pixel, renormalised at the border of the image.
    """

    def weights(length, resized_length, start, extent):
        matrix = np.zeros([out, length])
        stored_per_resized = length / resized_length
        step = extent * stored_per_resized / out
        radius = max(step, 1.0)
        for i in range(out):
            centre = start * stored_per_resized + (i + 0.5) * step
            for j in range(length):
                matrix[i, j] = max(0.0, 1.0 - abs(j + 0.5 - centre) / radius)
            matrix[i] /= matrix[i].sum()
        return matrix

    y, x, height, width = window
    rows = weights(pixels.shape[0], resized[0], y, height)
    columns = weights(pixels.shape[1], resized[1], x, width)
    return np.einsum("ij,jkc,lk->ilc", rows, pixels.astype(np.float64), columns)


def centre(resized, side):
    y, x = (round((length - side) / 2.0) for length in resized)
    return y, x, side, side


SIZES = [(50, 70, 40), (70, 50, 40), (50, 70, (40, 40)), (33, 90, (45, 60)), (20, 25, 64)]


@pytest.mark.parametrize("height,width,resize", SIZES)
def test_evaluation_is_resize_and_center_crop(height, width, resize):
    pixels = noise(height, width)
    resized = resized_size(height, width, resize)
    result = EvaluationTransform(32, resize)(pixels)
    assert result.dtype == tf.float32
    assert result.shape == (32, 32, 3)
    expected = sampled(pixels, resized, centre(resized, 32), 32)
    np.testing.assert_allclose(result, expected, atol=0.02)


def encoded(pixels, file_format):
    return encode(Image.fromarray(pixels), file_format, quality=90)


@pytest.mark.parametrize("file_format", ["JPEG", "PNG"])
@pytest.mark.parametrize("crop", ["fixed", "none"])
def test_files_and_pixels_give_the_same_result(file_format, crop):
    smooth = Image.fromarray(noise(9, 8)).resize((120, 95), Image.BICUBIC)
    content = encoded(np.asarray(smooth), file_format)
    pixels = np.asarray(Image.open(io.BytesIO(content)))
    transform = TrainTransform(32, 48, crop=crop, jitter=(0.2, 0.2, 0.2, 0.1))
    for seed in ([0, 1], [2, 3], [4, 5]):
        np.testing.assert_allclose(transform(content, seed), transform(pixels, seed), atol=1e-3)
    evaluation = EvaluationTransform(32, 48)
    np.testing.assert_allclose(evaluation(content), evaluation(pixels), atol=1e-3)


@pytest.mark.parametrize(("file_format", "edge"), [("JPEG", 2), ("PNG", 0)])
def test_area_crops_of_files_and_pixels(file_format, edge):
    """Equal except for the color of a JPEG's outer columns, see `EncodedImage.crop_jpeg`."""
    smooth = Image.fromarray(noise(9, 8)).resize((60, 50), Image.BICUBIC)
    content = encoded(np.asarray(smooth), file_format)
    pixels = np.asarray(Image.open(io.BytesIO(content)))
    transform = TrainTransform(32, 48, area=(0.4, 1.0))
    for seed in range(4):
        ours, expected = transform(content, [seed, 0]), transform(pixels, [seed, 0])
        inner = slice(edge, 32 - edge)
        np.testing.assert_allclose(ours[:, inner], expected[:, inner], atol=1e-3)
        np.testing.assert_allclose(ours, expected, atol=25)


def test_fixed_crops_are_uniform():
    count = 800
    transform = TrainTransform(20, resize=(24, 30), crop="fixed")
    seeds = tf.constant([[number, 7] for number in range(count)])
    _, (starts, extent), *_ = draw(transform, tf.constant([24, 30]), seeds)
    assert extent.numpy().tolist() == [20, 20]
    for start, places in zip(starts.numpy().T, (5, 11)):
        counts = np.bincount(start.astype(int), minlength=places)
        assert len(counts) == places
        expected = count / places
        assert (abs(counts - expected) < 5 * math.sqrt(expected)).all(), counts


def test_flip_mirrors_left_to_right():
    pixels = noise(30, 30)
    plain = TrainTransform(30, crop="none", flip=False)
    flipped = TrainTransform(30, crop="none")
    images = [flipped(pixels, [seed, 0]).numpy() for seed in range(12)]
    reference = plain(pixels, [0, 0]).numpy()
    is_same = [np.array_equal(image, reference) for image in images]
    is_mirrored = [np.array_equal(image, reference[:, ::-1]) for image in images]
    assert any(is_same) and any(is_mirrored)
    assert all(same or mirrored for same, mirrored in zip(is_same, is_mirrored))


@pytest.mark.parametrize("crop", ["fixed", "none", "area"])
def test_jitter_sees_the_whole_resized_image(crop):
    """Equal to torchvision's Resize, ColorJitter, RandomResizedCrop, and flip, in this order."""
    pixels = noise(40, 52)
    pixels[:, :26] //= 4  # so that the means of crops differ from the mean of the image
    jitter = (0.3, 0.5, 0.3, 0.1)
    transform = TrainTransform(24, (40, 52), crop=crop, area=(0.15, 0.2), jitter=jitter)
    for seed in range(6):
        _, (start, extent), flip, numbers = draw(transform, tf.constant([40, 52]), [seed, 0])
        colors = torchvision_model.jittered(pixels, numbers.numpy().tolist(), jitter)
        y, x, height, width = (int(side) for side in tf.concat([start, extent], 0))
        cut = colors[y : y + height, x : x + width]
        expected = sampled(cut, (height, width), (0, 0, height, width), 24)
        expected = expected[:, ::-1] if flip[0] < 0.5 else expected
        np.testing.assert_allclose(transform(pixels, [seed, 0]), expected, atol=1.0)


def test_a_seed_fixes_every_bit_and_seeds_differ():
    content = encoded(noise(60, 80), "JPEG")
    transform = TrainTransform(32, 40, jitter=(0.3, 0.3, 0.3, 0.1))
    traced = tf.function(transform)
    images = [traced(tf.constant(content), tf.constant([seed, 0], tf.int64)) for seed in range(8)]
    again = [traced(tf.constant(content), tf.constant([seed, 0], tf.int64)) for seed in range(8)]
    for one, other in zip(images, again):
        np.testing.assert_array_equal(one, other)
    assert len({image.numpy().tobytes() for image in images}) == 8
    assert all(image.numpy().min() >= 0 and image.numpy().max() <= 255 for image in images)


@pytest.mark.parametrize(
    "arguments,message",
    [
        ({"image_size": 0}, "image_size must be .*at least 1, but got 0"),
        ({"resize": 0}, "resize must be None, the shortest side"),
        ({"resize": (64, 64, 3)}, "resize must be None, the shortest side"),
        ({"crop": "fixed", "resize": 31}, "resize must be at least image_size"),
        ({"crop": "none", "resize": (64, 31)}, "resize must be at least image_size"),
        ({"crop": "random"}, "crop must be one of .* but got 'random'"),
        ({"area": (0.0, 1.0)}, "area must be .*<= 1, but got "),
        ({"area": (0.5, 1.1)}, "area must be"),
        ({"area": (0.5,)}, "area must be"),
        ({"aspect": (2.0, 1.0)}, "aspect must be .* but got "),
        ({"aspect": (1.0, math.inf)}, "aspect must be"),
        ({"jitter": (0.1, 0.1, 0.1)}, "jitter must be four"),
        ({"jitter": (-0.1, 0, 0, 0)}, "jitter must be four"),
        ({"jitter": (0, 0, 0, 0.6)}, "hue up to 0.5, but got "),
    ],
)
def test_bad_arguments_of_the_training_transform(arguments, message):
    with pytest.raises(ValueError, match=message):
        TrainTransform(**{"image_size": 32, **arguments})


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "transform",
    [
        TrainTransform(16, 20, crop="fixed"),
        TrainTransform(16, (18, 23), crop="fixed", flip=False),
        EvaluationTransform(16, 20),
    ],
    ids=str,
)
def test_a_batch_has_the_same_bits_as_its_images(transform, channels):
    pixels = np.stack([noise(24, 31, channels, seed) for seed in range(9)])
    seeds = np.random.default_rng(0).integers(-(2**62), 2**62, (9, 2))
    drawn = (seeds,) if isinstance(transform, TrainTransform) else ()

    @tf.function(autograph=False)
    def of_batch():
        return transform_batch(transform, tf.constant(pixels), *map(tf.constant, drawn))

    expected = [transform(*image) for image in zip(pixels, *drawn)]
    np.testing.assert_array_equal(of_batch(), expected)


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
    for _ in range(120):
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
    for _ in range(10):
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
