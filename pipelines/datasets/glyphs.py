"""The built-in dataset: characters in the DejaVu fonts that matplotlib contains.

It needs no download, and is similar to real retrieval benchmarks: many classes, few images of each,
and test classes that training never sees.
"""

import functools
import hashlib
import os
import unicodedata
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from keras_dml._common.checks import check_whole
from keras_dml._common.extras import needing
from pipelines.split import Unsplit
from pipelines.table import ImageTable

if TYPE_CHECKING:
    from PIL import Image, ImageFont

IMAGE_SIZE = 32
"""Height and width of an image in pixels."""

FACES = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSans-BoldOblique",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-Italic",
    "DejaVuSerif-BoldItalic",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSansMono-Oblique",
    "DejaVuSansMono-BoldOblique",
)
"""Fonts. Each class has one image in each font, in this order."""

# Calibrated on the second 400 classes: R@1 of raw pixels is 0.17 (cosine) and 0.14 (l2). The cause
# is mostly geometry, not noise, so that a network can learn to ignore it.
ROTATION = (-15.0, 15.0)  # degrees, clockwise as seen
SCALE = (0.8, 1.1)
SHIFT = (-3.0, 3.0)  # pixels, in x and in y
CONTRAST = (0.6, 1.0)  # 1: foreground 255, background 0
NOISE = 10.0  # standard deviation in gray levels

# Characters are drawn at twice the image size. A bilinear sample then averages four pixels of the
# drawing, so that the affine map neither blurs nor aliases.
_DRAWING = 2 * IMAGE_SIZE
_EM = 42
# The tallest characters reach from 1.1 em above the baseline to 0.3 em below. This centers them.
# All fit, except U+2031 (per ten thousand), which is wider than the drawing and loses its ends.
_BASELINE = _DRAWING // 2 + round(0.37 * _EM)

# Largest difference of homoglyphs at any pixel, in gray levels. Not 0, because some are a fraction
# of a pixel apart (Latin and Cyrillic A in the serif fonts). Different shapes differ by over 100.
_SAME = 90


def load(num_classes: int | None = None) -> Unsplit:
    """Built in: characters. By default, the first half of the classes is for training."""
    return Unsplit(glyphs(num_classes))


def glyphs(num_classes: int | None = None) -> ImageTable:
    """Draw about 2,200 classes, one per character, of 12 gray images of 32×32, one in each DejaVu
    font.

    A class is a printable character that exists in all `FACES`. Homoglyphs, which look the same in
    all fonts up to a fraction of a pixel (Latin A, Greek Alpha, Cyrillic A), are one class with the
    lowest code point. Characters are light on a dark background. Each image has a random rotation,
    scale, shift, and contrast, uniform in the ranges in this module, and Gaussian noise. They are a
    pure function of (character, font). The order of the classes is a fixed shuffle, so that all
    parts of it mix scripts. `glyphs(N)` has the first N classes of `glyphs()`.

    Args:
        num_classes: Number of classes, from the first. None: all.

    Returns:
        `ImageTable` with uint8 `arrays` [12 * num_classes, 32, 32, 1], ordered by class and font,
        and class names such as `U+00E9 é`.

    Raises:
        ValueError, TypeError: `num_classes` is out of range or not an integer.
    """
    fonts, characters = _fonts(), _characters()
    if num_classes is None:
        num_classes = len(characters)
    num_classes = check_whole("num_classes", num_classes, least=1, most=len(characters))
    characters = characters[:num_classes]
    images = np.concatenate([_class_images(fonts, c) for c in characters])
    return ImageTable.from_arrays(
        images[..., np.newaxis],
        np.repeat(np.arange(num_classes), len(FACES)),
        [f"U+{ord(c):04X} {c}" for c in characters],
    )


def _paths() -> list[str]:
    with needing("run", "the dataset glyphs"):
        import matplotlib

    folder = os.path.join(matplotlib.get_data_path(), "fonts", "ttf")
    return [os.path.join(folder, face + ".ttf") for face in FACES]


def _fonts() -> "list[ImageFont.FreeTypeFont]":
    with needing("run", "the dataset glyphs"):
        from PIL import ImageFont

    # Every build of Pillow has the basic layout. The results of the other one can differ.
    layout = ImageFont.Layout.BASIC
    return [ImageFont.truetype(path, _EM, layout_engine=layout) for path in _paths()]


def _common_characters() -> list[str]:
    """Return the characters that all fonts contain, by code point."""
    from matplotlib.ft2font import FT2Font

    codes = set.intersection(*(set(FT2Font(path).get_charmap()) for path in _paths()))
    # Categories M, Z, C are combining marks, spaces, and controls, which have no shape.
    return [c for c in map(chr, sorted(codes)) if unicodedata.category(c)[0] not in "MZC"]


@functools.cache
def _characters() -> list[str]:
    """Return the classes in their fixed order. Homoglyphs have the lowest code point."""
    fonts = _fonts()
    characters = [c for c in _common_characters() if _draw(fonts[0], c) is not None]
    homoglyphs = _homoglyphs(characters, fonts)
    # Sort by a digest of the character, so that a new character does not change the order.
    return sorted(
        (c for c in characters if c not in homoglyphs),
        key=lambda c: hashlib.sha256(c.encode()).digest(),
    )


def _homoglyphs(characters: list[str], fonts: "list[ImageFont.FreeTypeFont]") -> set[str]:
    """Return the characters that look like an earlier character, which is not a repeat itself."""
    # Comparing all pairs is slow. A product over the first font leaves few candidates, and its
    # pixels fewer, so that few characters are drawn in all fonts.
    first = np.stack([_shape(fonts[:1], c) for c in characters])
    units = first.reshape(len(first), -1).astype(np.float32)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    repeats: set[str] = set()
    for row, column in np.argwhere(np.triu(units @ units.T > 0.9, 1)).tolist():
        earlier, later = characters[row], characters[column]
        if (
            earlier not in repeats
            and later not in repeats
            and _is_same(first[row], first[column])
            and _is_same(_shape(fonts, earlier), _shape(fonts, later))
        ):
            repeats.add(later)
    return repeats


def _is_same(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(np.abs(one - other).max() <= _SAME)


def _shape(fonts: "list[ImageFont.FreeTypeFont]", character: str) -> npt.NDArray[np.int16]:
    """Draw a character in several fonts at half the size, [fonts, height, width]."""
    drawn = [cast("Image.Image", _draw(font, character)) for font in fonts]
    return np.stack([np.asarray(drawing.reduce(2), np.int16) for drawing in drawn])


def _draw(font: "ImageFont.FreeTypeFont", character: str) -> "Image.Image | None":
    """Draw a character on the baseline, horizontally centered. None if the character is empty."""
    from PIL import Image, ImageDraw

    wide = Image.new("L", (2 * _DRAWING, _DRAWING))
    ImageDraw.Draw(wide).text((_EM, _BASELINE), character, fill=255, font=font, anchor="ls")
    box = wide.getbbox()
    if box is None:
        return None
    # Center the foreground, not the advance width: homoglyphs of two scripts can differ only in
    # their side bearings, and a random shift would make these classes equal.
    left = (box[0] + box[2] - _DRAWING) // 2
    return wide.crop((left, 0, left + _DRAWING, _DRAWING))


def _class_images(fonts: "list[ImageFont.FreeTypeFont]", character: str) -> np.ndarray:
    """Draw and distort a character in all fonts, uint8 [12, 32, 32]."""
    from PIL import Image

    random = np.random.Generator(np.random.Philox(key=np.array([0, ord(character)], np.uint64)))
    low, high = np.transpose([ROTATION, SCALE, SHIFT, SHIFT, CONTRAST])
    drawn = random.uniform(low, high, (len(fonts), 5))
    noise = random.standard_normal((len(fonts), IMAGE_SIZE, IMAGE_SIZE), dtype=np.float32)
    ink = np.empty(noise.shape, np.float32)
    for face, (font, (rotation, scale, x, y, _)) in enumerate(zip(fonts, drawn)):
        coefficients = _inverse_map(rotation, scale, x, y)
        drawing = cast("Image.Image", _draw(font, character))  # all fonts have a shape
        distorted = drawing.transform(
            (IMAGE_SIZE, IMAGE_SIZE),
            Image.Transform.AFFINE,
            coefficients,
            Image.Resampling.BILINEAR,
        )
        ink[face] = np.asarray(distorted)
    contrast = drawn[:, 4, np.newaxis, np.newaxis]
    gray = 127.5 + contrast * (ink - 127.5) + NOISE * noise
    return np.clip(np.rint(gray), 0, 255).astype(np.uint8)


def _inverse_map(rotation: float, scale: float, x: float, y: float) -> tuple[float, ...]:
    """Return Pillow's coefficients that map a pixel of the image to a point of the drawing."""
    zoom = _DRAWING / IMAGE_SIZE / scale
    cosine = zoom * np.cos(np.radians(rotation))
    sine = zoom * np.sin(np.radians(rotation))
    center_x, center_y = IMAGE_SIZE / 2 + x, IMAGE_SIZE / 2 + y
    return (
        cosine,
        sine,
        _DRAWING / 2 - cosine * center_x - sine * center_y,
        -sine,
        cosine,
        _DRAWING / 2 + sine * center_x - cosine * center_y,
    )
