import io
import math

import numpy as np
import pytest
import tensorflow as tf
import tiers
from image_files import animated, encode, png, readable_files, smooth
from PIL import Image, ImageOps

from pipelines.images import decode

HEIGHT, WIDTH = 61, 83


def over_white(encoded):
    """Decode a file with Pillow, turn it upright, and composite it over white in float64."""
    image = Image.open(io.BytesIO(encoded))
    image = ImageOps.exif_transpose(image)
    rgba = np.asarray(image.convert("RGBA")).astype(np.float64)
    opacity = rgba[..., 3:] / 255
    return np.round(rgba[..., :3] * opacity + 255 * (1 - opacity)).astype(np.int64)


def four_bit_png(levels, *chunks):
    """Return a gray PNG of 4 bits, which Pillow does not write, of an even number of columns."""
    pairs = (levels[:, ::2] << 4 | levels[:, 1::2]).astype(np.uint8)
    scanlines = b"".join(b"\0" + row.tobytes() for row in pairs)
    return png(levels.shape[1], levels.shape[0], 4, 0, scanlines, *chunks)


GRAY = smooth(WIDTH, HEIGHT, channels=1)
STILL_FILES = readable_files(WIDTH, HEIGHT)
BAD_FILES = {
    "empty": (b"", "not a JPEG, PNG, WebP, BMP or GIF image"),
    "tiff": (encode(GRAY, "TIFF"), "not a JPEG, PNG, WebP, BMP or GIF image"),
    "webp_animated": (animated("WEBP", 9, 7), "animated WebP"),
    "bmp_1_bit": (encode(GRAY.convert("1"), "BMP"), "BMP that .* 8, 24, or 32 bits"),
    "jpeg_truncated": (STILL_FILES["jpeg"][:900], "Invalid JPEG"),
}

decode_image = tf.function(
    decode.decode_image, input_signature=[tf.TensorSpec([], tf.string)], autograph=False
)


@tf.function(
    input_signature=[tf.TensorSpec([], tf.string), tf.TensorSpec([4], tf.int32)], autograph=False
)
def crop(encoded, window):
    return decode.open_image(encoded).crop(window)


@pytest.mark.parametrize("name", STILL_FILES)
def test_every_format_decodes_to_the_same_rgb_as_pillow(name):
    decoded = decode_image(STILL_FILES[name])
    assert decoded.dtype == tf.uint8
    assert decoded.shape == (HEIGHT, WIDTH, 3)
    # Half levels can round differently. Opaque pixels are exact.
    tolerance = 1 if Image.open(io.BytesIO(STILL_FILES[name])).has_transparency_data else 0
    difference = np.abs(decoded.numpy().astype(np.int64) - over_white(STILL_FILES[name]))
    assert difference.max() <= tolerance


@pytest.mark.parametrize("chunks", [[], [(b"tRNS", b"\0\5")]])
def test_the_transparent_level_of_a_4_bit_png_is_white(chunks):
    levels = np.arange(16).reshape(2, 8)
    decoded = decode_image(four_bit_png(levels, *chunks)).numpy()
    expected = np.where((levels == 5) & bool(chunks), 255, levels * 17)
    np.testing.assert_array_equal(decoded, np.repeat(expected[..., None], 3, -1))


def test_16_bit_png_keeps_the_high_byte():
    levels = (np.asarray(GRAY).astype(np.uint16) << 8) | 0x7B
    decoded = decode_image(encode(Image.fromarray(levels), "PNG")).numpy()
    np.testing.assert_array_equal(decoded, np.repeat((levels >> 8)[..., None], 3, -1))


@pytest.mark.parametrize("name", ["jpeg", "png"])
@pytest.mark.parametrize(
    ("box", "rows", "columns"),
    [
        ((5, 7, 20, 30), (5, 25), (7, 37)),
        ((-3, -4, 10, 10), (0, 7), (0, 6)),
        ((50, 70, 99, 99), (50, HEIGHT), (70, WIDTH)),
        ((200, 300, 5, 5), (HEIGHT - 1, HEIGHT), (WIDTH - 1, WIDTH)),
        ((-9, -9, 2, 2), (0, 1), (0, 1)),
    ],
)
def test_box_behaves_like_a_separate_image(name, box, rows, columns):
    inside = decode_image(STILL_FILES[name]).numpy()[slice(*rows), slice(*columns)]
    image = decode.open_image((STILL_FILES[name], tf.constant(box, tf.int64)))
    height, width = inside.shape[:2]
    assert image.size.numpy().tolist() == [height, width]
    np.testing.assert_array_equal(image.crop(tf.constant([0, 0, height, width])), inside)
    window = tf.constant([height // 2, width // 3, 1, 1])
    np.testing.assert_array_equal(image.crop(window), inside[height // 2 :, width // 3 :][:1, :1])


SOME = ["jpeg", "jpeg_cmyk", "png", "png_palette_transparent", "gif"]
SOME += [f"jpeg_turned_{orientation}" for orientation in range(2, 9)]


@tiers.parametrize("name", STILL_FILES, SOME)
def test_window_equals_the_part_of_the_whole_image(name):
    whole = decode_image(STILL_FILES[name]).numpy()
    rng = np.random.default_rng(3)
    windows = [(0, 0, HEIGHT, WIDTH), (HEIGHT - 1, WIDTH - 1, 1, 1), (0, 16, 20, 16)]
    for _ in range(20):
        height, width = rng.integers(1, HEIGHT + 1), rng.integers(1, WIDTH + 1)
        y, x = rng.integers(0, HEIGHT - height + 1), rng.integers(0, WIDTH - width + 1)
        windows.append((y, x, height, width))
    for y, x, height, width in windows:
        np.testing.assert_array_equal(
            crop(STILL_FILES[name], [y, x, height, width]),
            whole[y : y + height, x : x + width],
        )


JPEGS = [name for name in STILL_FILES if name.startswith("jpeg")]


@pytest.mark.parametrize("name", JPEGS)
def test_quick_window_differs_only_in_the_colors_of_outer_columns(name):
    image = decode.open_image(STILL_FILES[name])
    assert bool(image.is_jpeg)
    for window in ([0, 0, HEIGHT, WIDTH], [7, 11, 40, 50], [60, 82, 1, 1]):
        exact, quick = image.crop(window).numpy(), image.crop_jpeg(tf.constant(window)).numpy()
        rows = slice(1, -1) if "turned" in name else slice(None)  # stored columns can be rows
        np.testing.assert_array_equal(quick[rows, 1:-1], exact[rows, 1:-1])
        gray = [pixels @ [0.299, 0.587, 0.114] for pixels in (quick, exact)]
        np.testing.assert_allclose(*gray, atol=2.5)


@pytest.mark.parametrize("reduction", [2, 4, 8])
def test_a_reduced_window_has_at_least_one_block_and_ends_with_the_image(reduction):
    """Gray, because the decoder interpolates colors at the border of a window."""
    image = decode.open_image(STILL_FILES["jpeg_gray"])
    whole = image.crop_jpeg(tf.constant([0, 0, 999, 999]), reduction)
    assert whole.shape == (math.ceil(HEIGHT / reduction), math.ceil(WIDTH / reduction), 3)
    first = image.crop_jpeg(tf.constant([0, 0, 1, 1]), reduction)
    np.testing.assert_array_equal(first, whole[:1, :1])
    last = image.crop_jpeg(tf.constant([HEIGHT - 1, WIDTH - 1, 1, 1]), reduction)
    np.testing.assert_array_equal(last, whole[-1:, -1:])


def test_the_size_of_a_jpeg_needs_no_decoding():
    header_only = STILL_FILES["jpeg"][:700]
    assert [int(side) for side in decode.open_image(header_only).size] == [HEIGHT, WIDTH]


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.parametrize("traced", [True, False])
def test_bad_files_are_refused(name, traced):
    encoded, reason = BAD_FILES[name]
    with pytest.raises(tf.errors.InvalidArgumentError, match=reason):
        (decode_image if traced else decode.decode_image)(tf.constant(encoded))


@pytest.mark.parametrize(
    "source",
    [np.zeros([4, 4, 3], np.float32), np.zeros([4, 4], np.uint8), np.zeros([4, 4, 2], np.uint8)],
)
def test_other_sources_are_refused(source):
    with pytest.raises(TypeError, match="source must be a scalar string"):
        decode.open_image(source)
