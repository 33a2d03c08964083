"""Small pictures of image files, untrusted files, and correlations of duplicate pictures."""

import io

import numpy as np
import pytest
from image_files import encode
from photo_search import picture, png
from PIL import Image
from synthetic_photographs import catalog, photographs

from experiments.evaluation.audit import SIDE, best_cut, picture_correlations
from experiments.pages.pictures import checked_picture, thumbnail


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
    transparent = encode(Image.new("RGBA", (4, 4), (255, 0, 0, 0)), "PNG")
    assert (np.asarray(opened(io.BytesIO(transparent))) == 255).all()
    deep = encode(Image.fromarray(np.full((4, 4), 100 * 256 + 9, np.uint16)), "PNG")
    assert (np.asarray(opened(io.BytesIO(deep))) == 100).all()


def test_invalid_pictures():
    assert checked_picture(png(0)) == png(0)
    with pytest.raises(ValueError, match="not a JPEG"):
        checked_picture(b"<svg></svg>")
    with pytest.raises(ValueError, match="a damaged image"):
        thumbnail(io.BytesIO(png(0, (200, 200))[:120]))
    with pytest.raises(ValueError, match="an image of more than 399 pixels"):
        checked_picture(png(0), max_pixels=399)
    assert checked_picture(png(0), max_pixels=400) == png(0)
    bomb = encode(Image.new("1", (14_000, 14_000)), "PNG")  # 24 KB
    with pytest.raises(ValueError, match="an image of more than"):
        checked_picture(bomb)


def test_only_the_first_frame_of_an_animated_gif_is_decoded():
    frames = [picture(seed).quantize(16) for seed in range(3)]
    still = encode(frames[0], "GIF")
    assert checked_picture(still) == still
    moving = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    first = Image.open(io.BytesIO(checked_picture(moving)))
    assert first.format == "PNG"
    np.testing.assert_array_equal(first, frames[0].convert("RGB"))


PHOTOS = np.stack(
    [Image.fromarray(pixels).convert("L") for pixels in photographs(catalog(12, seed=0), 1, seed=0)]
)


def correlations(first, second):
    """Return the correlations of one picture with others."""
    pictures = np.stack([first, *second])
    pairs = np.array([(0, number) for number in range(1, len(pictures))])
    return picture_correlations(pictures, pairs)


def changed(picture, cut):
    """Return a crop of a picture, resized to the full size."""
    top, left, side = cut
    part = Image.fromarray(picture[top : top + side, left : left + side])
    return np.asarray(part.resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def test_the_best_cut_equals_an_exhaustive_search():
    one, other = PHOTOS[0], changed(PHOTOS[0], (3, 1, 28))

    def pearson(a, b):
        a, b = a.astype(float).ravel(), b.astype(float).ravel()
        return float(np.corrcoef(a, b)[0, 1])

    best = -1.0
    for whole, cut_of in ((one, other), (other, one)):
        for size in range(27, 33):
            small = Image.fromarray(whole).resize((size, size), Image.Resampling.BOX)
            for top in range(SIDE - size + 1):
                for left in range(SIDE - size + 1):
                    part = cut_of[top : top + size, left : left + size]
                    best = max(best, pearson(np.asarray(small), part))
    assert abs(best_cut(one, other) - best) < 1e-4
    (found,) = correlations(one, [other])
    assert abs(found - best) < 1e-4 and best > 0.95


def test_changed_copies_correlate_and_other_pictures_do_not():
    rng = np.random.default_rng(0)
    for photo in PHOTOS[:4]:
        noisy = np.clip(photo + rng.normal(0, 4, photo.shape), 0, 255).astype(np.uint8)
        darker = (0.7 * photo + 5).astype(np.uint8)
        same = [noisy, darker, photo[:, ::-1], changed(photo, (2, 0, 29))]
        assert correlations(photo, same).min() > 0.92
    pairs = np.stack(np.triu_indices(12, 1), axis=1)
    assert picture_correlations(PHOTOS, pairs).max() < 0.92


def test_a_uniform_picture_has_zero_correlation():
    flat = np.full((SIDE, SIDE), 200, np.uint8)
    assert correlations(flat, [flat, PHOTOS[0]]).tolist() == [0, 0]
