import math

import numpy as np
import pytest
import tensorflow as tf
from image_files import encode
from PIL import Image

from pipelines.images.decode import open_image
from pipelines.images.resample import resample, resample_for_training

SIDE = 16


def window(*numbers):
    """Convert (y, x, height, width) to a window of `pipelines.images.windows`."""
    return tf.constant(numbers[:2], tf.float32), tf.constant(numbers[2:], tf.float32)


def picture(height, width):
    noise = np.random.default_rng(0).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(noise).resize((width, height), Image.BICUBIC))


def encoded(pixels, file_format):
    return encode(Image.fromarray(pixels), file_format, quality=95)


def both(source, resized, part):
    """Return the results of `resample_for_training` and `resample`."""
    image = open_image(source)
    return (read(image, resized, part, SIDE).numpy() for read in (resample_for_training, resample))


def two_taps(pixels, out):
    """Interpolate bilinearly at half-pixel centers, clamped at the border, as a plain sum."""

    def weights(length):
        matrix = np.zeros([out, length])
        for i in range(out):
            centre = min(max((i + 0.5) * length / out - 0.5, 0), length - 1)
            below = math.floor(centre)
            matrix[i, below] += 1 - (centre - below)
            matrix[i, min(below + 1, length - 1)] += centre - below
        return matrix

    rows, columns = weights(pixels.shape[0]), weights(pixels.shape[1])
    return np.einsum("ij,jkc,lk->ilc", rows, pixels.astype(np.float64), columns)


@pytest.mark.parametrize("extent", [(16, 16), (31, 20), (9, 30), (8, 8)])
def test_crops_below_two_stored_pixels_per_output_pixel_are_bilinear(extent):
    pixels = np.random.default_rng(1).integers(0, 256, (50, 40, 3), dtype=np.uint8)
    ours, _ = both(pixels, (50, 40), window(3, 5, *extent))
    expected = two_taps(pixels[3 : 3 + extent[0], 5 : 5 + extent[1]], SIDE)
    np.testing.assert_allclose(ours, expected, atol=0.01)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("extent", [(32, 20), (7, 12), (3, 3), (48, 40)])
def test_other_pixels_use_the_exact_filter(extent, channels):
    pixels = np.random.default_rng(1).integers(0, 256, (50, 40, channels), dtype=np.uint8)
    ours, exact = both(pixels, (50, 40), window(1.0, 0.0, *extent))
    np.testing.assert_array_equal(ours, exact)


def test_png_and_enlarged_jpeg_use_the_exact_filter():
    pixels = picture(150, 130)
    ours, exact = both(encoded(pixels, "PNG"), (150, 130), window(10, 20, 80, 90))
    np.testing.assert_array_equal(ours, exact)
    ours, exact = both(encoded(pixels, "JPEG"), (150, 130), window(10, 20, 7, 9))
    np.testing.assert_array_equal(ours, exact)


@pytest.mark.parametrize("reduction", [2, 4, 8])
@pytest.mark.parametrize("box", [None, (13, 21, 250, 290)])
def test_large_jpeg_is_reduced_and_looks_the_same(reduction, box):
    """The result is nearer to the exact filter than a shift by half an output pixel."""
    content = encoded(picture(300, 320), "JPEG")
    height, width = round(1.3 * reduction * SIDE), round(1.9 * reduction * SIDE)
    source = content if box is None else (content, tf.constant(box, tf.int64))
    resized, place = (250, 290), (4, 30)
    image = open_image(source)
    scale = np.array(image.size) / resized

    def at(y, x):
        part = window(*(np.array([place[0] + y, place[1] + x]) / scale), height / scale[0],
                      width / scale[1])  # fmt: skip
        return both(source, resized, part)

    ours, exact = at(0, 0)
    error = np.abs(ours - exact).mean()
    step = np.array([height, width]) / SIDE
    for down, right in ((1, 0), (0, 1), (-1, 0), (0, -1)):
        _, moved = at(down * step[0] / 2, right * step[1] / 2)
        assert error < np.abs(moved - exact).mean()
    assert 0 < error < 2.5


@pytest.mark.parametrize("size", [(1, 1), (300, 1), (1, 300), (300, 300)])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "pixels"])
def test_thin_images(size, kind):
    pixels = np.full([*size, 3], 90, np.uint8)
    source = pixels if kind == "pixels" else encoded(pixels, kind)
    ours, _ = both(source, size, window(0, 0, *size))
    np.testing.assert_allclose(ours, 90, atol=1.5)
