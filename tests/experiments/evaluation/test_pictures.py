"""Small pictures of image files, and the check of untrusted files."""

import io

import numpy as np
import pytest
from photo_search import picture, png
from PIL import Image

from experiments.evaluation.pictures import checked_picture, thumbnail


def opened(source):
    data, kind = thumbnail(source)
    image = Image.open(io.BytesIO(data))
    assert image.format == kind.upper() and image.mode == "RGB"
    return image


def test_small_pictures_keep_their_pixels_and_large_ones_are_resized(tmp_path):
    picture(0, (40, 30)).save(tmp_path / "small.png")
    np.testing.assert_array_equal(opened(tmp_path / "small.png"), picture(0, (40, 30)))
    picture(0, (1000, 500)).save(tmp_path / "large.jpg", quality=95)
    large = opened(tmp_path / "large.jpg")
    assert large.size == (320, 160)
    expected = np.asarray(picture(0, (320, 160)), float)
    assert np.abs(np.asarray(large) - expected).mean() < 6


def test_transparency_becomes_white_and_16_bits_keep_the_high_byte():
    file = io.BytesIO()
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(file, "PNG")
    assert (np.asarray(opened(file)) == 255).all()
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4), 100 * 256 + 9, np.uint16)).save(file, "PNG")
    assert (np.asarray(opened(file)) == 100).all()


def test_invalid_pictures():
    assert checked_picture(png(0)) == png(0)
    with pytest.raises(ValueError, match="not a JPEG"):
        checked_picture(b"<svg></svg>")
    with pytest.raises(ValueError, match="a damaged image"):
        thumbnail(io.BytesIO(png(0, (200, 200))[:120]))
    with pytest.raises(ValueError, match="an image of more than 399 pixels"):
        checked_picture(png(0), max_pixels=399)
    assert checked_picture(png(0), max_pixels=400) == png(0)
    bomb = io.BytesIO()
    Image.new("1", (14_000, 14_000)).save(bomb, "PNG")  # 24 KB
    with pytest.raises(ValueError, match="an image of more than"):
        checked_picture(bomb.getvalue())


def test_only_the_first_frame_of_an_animated_gif_is_decoded():
    still, moving = io.BytesIO(), io.BytesIO()
    frames = [picture(seed).quantize(16) for seed in range(3)]
    frames[0].save(still, "GIF")
    assert checked_picture(still.getvalue()) == still.getvalue()
    frames[0].save(moving, "GIF", save_all=True, append_images=frames[1:])
    first = Image.open(io.BytesIO(checked_picture(moving.getvalue())))
    assert first.format == "PNG"
    np.testing.assert_array_equal(first, frames[0].convert("RGB"))
