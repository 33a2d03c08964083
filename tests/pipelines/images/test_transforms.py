"""Transforms of images against plain sums and torchvision's definitions."""

import dataclasses
import io
import math

import numpy as np
import pytest
import tensorflow as tf
import torchvision_model
from image_files import encode, smooth
from PIL import Image
from scipy import stats

from pipelines.images.decode import open_image
from pipelines.images.jitter import jitter_colors
from pipelines.images.resample import resample, resample_for_training
from pipelines.images.tensorflow_transforms import draw
from pipelines.images.transforms import EvaluationTransform, TrainTransform
from pipelines.images.windows import area_window


def noise(height, width, channels=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (height, width, channels), dtype=np.uint8)


def encoded(pixels, file_format):
    return encode(Image.fromarray(np.asarray(pixels)), file_format, quality=95)


def sampled(pixels, resized, window, out, antialias=True):
    """Scale a window of the resized image to out x out, as a plain sum over stored pixels.

    Bilinear: a triangle, renormalised at the border of the image. With antialiasing, it is as wide
    as the step between output pixels, where that is more than one stored pixel.
    """

    def weights(length, resized_length, start, extent):
        matrix = np.zeros([out, length])
        stored_per_resized = length / resized_length
        step = extent * stored_per_resized / out
        radius = max(step, 1.0) if antialias else 1.0
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


@pytest.mark.parametrize(
    ("height", "width", "resize", "resized"),
    [
        (70, 50, 40, (56, 40)),
        (50, 71, 40, (40, 56)),  # 56.8 without rounding
        (33, 90, (45, 60), (45, 60)),
        (20, 25, 64, (64, 80)),
    ],
)
def test_evaluation_is_resize_and_center_crop(height, width, resize, resized):
    pixels = noise(height, width)
    result = EvaluationTransform(32, resize)(pixels)
    assert result.dtype == tf.float32
    assert result.shape == (32, 32, 3)
    y, x = (round((length - 32) / 2.0) for length in resized)
    expected = sampled(pixels, resized, (y, x, 32, 32), 32)
    np.testing.assert_allclose(result, expected, atol=0.02)


TRANSFORMS = {
    "fixed": TrainTransform(32, 48, crop="fixed", jitter=(0.2, 0.2, 0.2, 0.1)),
    "none": TrainTransform(32, 48, crop="none", jitter=(0.2, 0.2, 0.2, 0.1)),
    "area": TrainTransform(32, 48, area=(0.4, 1.0)),
    "evaluation": lambda image, seed: EvaluationTransform(32, 48)(image),
}


@pytest.mark.parametrize("file_format", ["JPEG", "PNG"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_files_and_pixels_give_the_same_result(name, file_format):
    """Equal except for the color of a JPEG's outer columns, see `EncodedImage.crop_jpeg`."""
    # An area of a larger JPEG is decoded at half the size.
    content = encoded(smooth(60, 50) if name == "area" else smooth(120, 95), file_format)
    pixels = np.asarray(Image.open(io.BytesIO(content)))
    edge = 2 if (name, file_format) == ("area", "JPEG") else 0
    for seed in range(4):
        ours, expected = (TRANSFORMS[name](image, [seed, 0]) for image in (content, pixels))
        inner = slice(edge, 32 - edge)
        np.testing.assert_allclose(ours[:, inner], expected[:, inner], atol=1e-3)
        np.testing.assert_allclose(ours, expected, atol=25)


def test_fixed_crops_are_uniform():
    transform = TrainTransform(20, resize=(24, 30), crop="fixed")
    seeds = tf.constant([[number, 7] for number in range(800)])
    _, (starts, extent), *_ = draw(transform, tf.constant([24, 30]), seeds)
    assert extent.numpy().tolist() == [20, 20]
    for start, places in zip(starts.numpy().T, (5, 11)):
        counts = np.bincount(start.astype(int), minlength=places)
        assert len(counts) == places
        assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("crop", ["fixed", "none", "area"])
def test_jitter_sees_the_whole_resized_image(crop):
    """Equal to torchvision's Resize, ColorJitter, RandomResizedCrop, and flip, in this order."""
    pixels = noise(40, 52)
    pixels[:, :26] //= 4  # so that the means of crops differ from the mean of the image
    jitter = (0.3, 0.5, 0.3, 0.1)
    transform = TrainTransform(24, (40, 52), crop=crop, area=(0.15, 0.2), jitter=jitter)
    flips = set()
    for seed in range(6):
        _, (start, extent), flip, numbers = draw(transform, tf.constant([40, 52]), [seed, 0])
        colors = torchvision_model.jittered(pixels, numbers.numpy().tolist(), jitter)
        y, x, height, width = (int(side) for side in tf.concat([start, extent], 0))
        cut = colors[y : y + height, x : x + width]
        expected = sampled(cut, (height, width), (0, 0, height, width), 24)
        expected = expected[:, ::-1] if flip[0] < 0.5 else expected
        np.testing.assert_allclose(transform(pixels, [seed, 0]), expected, atol=1.0)
        flips.add(bool(flip[0] < 0.5))
    assert flips == {True, False}


@pytest.mark.parametrize("jitter", [(0, 0, 0, 0), (0.3, 0.5, 0.3, 0.1)])
def test_crops_of_the_resized_image_have_its_detail(jitter):
    """Equal to torchvision's Resize, ColorJitter, and RandomResizedCrop of a Pillow image.

    The picture has lines of one stored pixel, which the resize removes and a crop of the stored
    image shows.
    """
    pixels = noise(120, 160)
    pixels[:, ::2] //= 4
    photo = encoded(pixels, "PNG")
    small = np.asarray(Image.fromarray(pixels).resize((40, 30), Image.Resampling.BILINEAR))
    transform = TrainTransform(
        24, 30, "area", (0.2, 0.6), crop_from="resized", flip=False, jitter=jitter
    )
    for seed in range(4):
        _, window, _, numbers = draw(transform, tf.constant([120, 160]), [seed, 0])
        y, x, height, width = (int(side) for side in tf.concat(window, 0))
        colors = small
        if any(jitter):
            colors = torchvision_model.jittered(small, numbers.numpy().tolist(), jitter)
        cut = Image.fromarray(np.round(colors).astype("uint8")).crop((x, y, x + width, y + height))
        expected = np.asarray(cut.resize((24, 24), Image.Resampling.BILINEAR), float)
        for source in (photo, pixels):
            np.testing.assert_allclose(transform(source, [seed, 0]), expected, atol=3.0)
        if not any(jitter):
            original = dataclasses.replace(transform, crop_from="original")(photo, [seed, 0])
            assert np.abs(original - expected).mean() > 1.2  # above: 0.4


def test_pillow_crops_the_resized_image():
    pixels = noise(120, 160)
    whole = Image.fromarray(pixels).resize((40, 30), Image.Resampling.BILINEAR)
    # Only crops of 20 x 15 pixels fit.
    transform = TrainTransform(
        24, 30, "area", (0.25, 0.25), (4 / 3, 4 / 3), flip=False, crop_from="resized"
    )
    crops = [whole.crop((x, y, x + 20, y + 15)) for x in range(21) for y in range(16)]
    expected = {np.asarray(crop.resize((24, 24), 2)).tobytes() for crop in crops}
    for seed in range(4):
        assert transform.with_pillow(pixels, [seed, 0]).astype("uint8").tobytes() in expected


@pytest.mark.parametrize(
    "arguments,message",
    [
        ({"image_size": 0}, "image_size must be .*at least 1, but got 0"),
        ({"resize": (64, 64, 3)}, "resize must be None, the shortest side"),
        ({"crop": "fixed", "resize": 31}, "resize must be at least image_size"),
        ({"crop": "none", "resize": (64, 31)}, "resize must be at least image_size"),
        ({"crop": "random"}, "crop must be one of .* but got 'random'"),
        ({"crop_from": "whole"}, "crop_from must be one of .* but got 'whole'"),
        ({"area": (0.0, 1.0)}, "area must be .*<= 1, but got "),
        ({"area": (0.5, 1.1)}, "area must be"),
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


@pytest.mark.parametrize(
    "height,width,area,aspect",
    [
        (256, 341, (0.16, 1.0), (3 / 4, 4 / 3)),
        (40, 300, (0.5, 1.0), (3 / 4, 4 / 3)),  # rarely fits: the central crop with less width
        (300, 40, (0.5, 1.0), (3 / 4, 4 / 3)),  # the same with less height
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
    assert differ <= 3  # a length near a half can round differently in float32


@pytest.mark.parametrize("size", [(1, 1), (1, 400), (400, 1)])
def test_area_windows_of_thin_images_are_not_empty(size):
    for last in (0.0, 0.99999994):
        window = area_window(size, tf.fill([22], last), (0.16, 1.0), (0.2, 0.3))
        window = np.concatenate(window)
        assert (window[2:] >= 1).all()
        assert (window[:2] >= 0).all() and (window[:2] + window[2:] <= size).all()


@pytest.mark.parametrize("jitter", [(0.3, 0.3, 0.3, 0.1), (1.5, 0, 0, 0), (0, 0, 0, 0.5)])
def test_jitter_follows_the_definition(jitter):
    image = np.random.default_rng(0).integers(0, 256, (7, 9, 3)).astype(np.float32)
    rng = np.random.default_rng(2)
    adjust = tf.function(lambda image, uniform: jitter_colors(image, uniform, jitter))
    for _ in range(10):
        uniform = rng.random(8, np.float32)
        expected = torchvision_model.jittered(image, uniform.tolist(), jitter)
        np.testing.assert_allclose(adjust(image, uniform), expected, atol=0.01)


def test_pillow_shifts_the_hue_by_whole_levels_toward_0():
    # As in torchvision: a shift of 0.9 of a level is no shift.
    transform = TrainTransform(8, crop="none", flip=False, jitter=(0, 0, 0, 0.9 / 255))
    red = np.broadcast_to(np.array([255, 0, 0], "uint8"), [8, 8, 3])
    for seed in range(20):
        np.testing.assert_array_equal(transform.with_pillow(red, [seed, 0]), red)


@pytest.mark.slow
def test_factors_are_uniform_and_all_orders_are_equally_likely():
    """Test the random numbers of a transform. The tests above check their effects."""
    count = 4800
    transform = TrainTransform(8, 8, crop="fixed", jitter=(0.3, 0.3, 0.3, 0.1))

    seeds = tf.constant([[number, 3] for number in range(count)])
    numbers = draw(transform, tf.constant([8, 8]), seeds)[3].numpy()
    places, keys = np.split(numbers, 2, axis=1)
    for kind in range(4):
        assert stats.kstest(places[:, kind], "uniform").pvalue > 1e-3
    orders = np.argsort(keys, axis=1) @ [64, 16, 4, 1]
    _, counts = np.unique(orders, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-3
    assert abs(np.corrcoef(numbers.T) - np.eye(8)).max() < 5 / np.sqrt(count)


def window_of(*numbers):
    """Convert (y, x, height, width) to a window of `pipelines.images.windows`."""
    return tf.constant(numbers[:2], tf.float32), tf.constant(numbers[2:], tf.float32)


def both(source, resized, part):
    """Return the results of `resample_for_training` and `resample`."""
    image = open_image(source)
    return (read(image, resized, part, 16).numpy() for read in (resample_for_training, resample))


@pytest.mark.parametrize("extent", [(16, 16), (31, 20), (9, 30), (8, 8)])
def test_crops_below_two_stored_pixels_per_output_pixel_are_bilinear(extent):
    pixels = noise(50, 40)
    ours, _ = both(pixels, (50, 40), window_of(3, 5, *extent))
    cut = pixels[3 : 3 + extent[0], 5 : 5 + extent[1]]
    expected = sampled(cut, extent, (0, 0, *extent), 16, antialias=False)
    np.testing.assert_allclose(ours, expected, atol=0.01)


@pytest.mark.parametrize(
    ("source", "extent"),
    [
        (noise(50, 40, 1), (32, 20)),
        (noise(50, 40), (7, 12)),
        (encoded(smooth(40, 50), "PNG"), (48, 35)),
        (encoded(smooth(40, 50), "JPEG"), (7, 9)),
    ],
    ids=["gray", "enlarged", "PNG", "enlarged JPEG"],
)
def test_other_images_use_the_exact_filter(source, extent):
    ours, exact = both(source, (50, 40), window_of(1.0, 0.0, *extent))
    np.testing.assert_array_equal(ours, exact)


@pytest.mark.parametrize("reduction", [2, 4, 8])
@pytest.mark.parametrize("box", [None, (13, 21, 250, 290)])
def test_large_jpeg_is_reduced_and_looks_the_same(reduction, box):
    """The result is nearer to the exact filter than a shift by half an output pixel."""
    content = encoded(smooth(320, 300), "JPEG")
    height, width = round(1.3 * reduction * 16), round(1.9 * reduction * 16)
    source = content if box is None else (content, tf.constant(box, tf.int64))
    resized, place = (250, 290), (4, 30)
    image = open_image(source)
    scale = np.array(image.size) / resized

    def at(y, x):
        part = window_of(*(np.array([place[0] + y, place[1] + x]) / scale), height / scale[0],
                      width / scale[1])  # fmt: skip
        return both(source, resized, part)

    ours, exact = at(0, 0)
    error = np.abs(ours - exact).mean()
    step = np.array([height, width]) / 16
    for down, right in ((1, 0), (0, 1), (-1, 0), (0, -1)):
        _, moved = at(down * step[0] / 2, right * step[1] / 2)
        assert error < np.abs(moved - exact).mean()
    assert 0 < error < 2.5


@pytest.mark.parametrize("size", [(1, 1), (300, 1), (1, 300), (300, 300)])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "pixels"])
def test_thin_images(size, kind):
    pixels = np.full([*size, 3], 90, np.uint8)
    source = pixels if kind == "pixels" else encoded(pixels, kind)
    ours, _ = both(source, size, window_of(0, 0, *size))
    np.testing.assert_allclose(ours, 90, atol=1.5)
