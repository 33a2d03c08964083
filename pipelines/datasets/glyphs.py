"""The built-in dataset: characters drawn from the DejaVu faces that matplotlib ships.

It needs no download, yet asks what real retrieval benchmarks ask: many classes, few images each,
and test classes that training never saw.
"""

import functools
import hashlib
import numbers
import os
import unicodedata
from typing import TYPE_CHECKING, cast

import numpy as np

from keras_dml._common.checks import check_whole
from keras_dml._common.errors import ArgumentError
from keras_dml._common.extras import needing
from pipelines.datasets.files import check_not_given
from pipelines.split import Split, split_by_class
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
"""Every class has one image in each of these faces, in this order."""

# Calibrated on the second 400 classes: raw-pixel R@1 is 0.17 (cosine) and 0.14 (l2). Geometry does
# most of that, not noise, so a network can learn to see through it.
ROTATION = (-15.0, 15.0)  # degrees, clockwise as seen
SCALE = (0.8, 1.1)
SHIFT = (-3.0, 3.0)  # pixels, in x and in y
CONTRAST = (0.6, 1.0)  # 1: ink 255 on ground 0
NOISE = 10.0  # standard deviation, grey levels

# Characters are drawn at twice the image size: a bilinear sample of the drawing then averages the
# four pixels that fall into one image pixel, so the one affine map neither blurs nor aliases.
_DRAWING = 2 * IMAGE_SIZE
_EM = 42
# The tallest characters reach 1.1 em above the baseline and 0.3 em below it: this centres them.
# All fit but U+2031 (per ten thousand), which is wider than the drawing and loses its ends.
_BASELINE = _DRAWING // 2 + round(0.37 * _EM)

# Homoglyphs are equal at every pixel to within so many grey levels. Not 0: the fonts place some a
# fraction of a pixel apart (Latin and Cyrillic A in the serif faces). Pairs that a reader can tell
# apart by shape differ by more than 100.
_SAME = 90


def load_split(
    data_dir: str | os.PathLike[str] | None,
    train_classes: int | None = None,
    test_classes: int | None = None,
    split: str = "first_classes",
    seed: int = 0,
) -> Split:
    """Built in: characters; the first classes train, the next ones test."""
    check_not_given("glyphs", "reads no files", data_dir=data_dir)
    wanted = None
    first = split == "first_classes"
    if first and train_classes and test_classes and min(train_classes, test_classes) > 0:
        # Drawing takes time, and the first classes are the same however many are drawn.
        wanted = train_classes + test_classes
    try:
        table = glyphs(num_classes=wanted)
    except ValueError as error:
        raise ArgumentError(
            f"train_classes={train_classes} and test_classes={test_classes} do not fit: {error}"
        ) from error
    return split_by_class(table, train_classes, test_classes, None, split, seed)


def glyphs(num_classes: int | None = None, seed: int = 0) -> ImageTable:
    """About 2,200 classes, one a character, of 12 grey images of 32×32, one in each DejaVu face.

    A class is a printable character that all of `FACES` have. Homoglyphs, characters drawn the
    same in every face up to a fraction of a pixel (Latin A, Greek Alpha, Cyrillic A), are one class
    under the lowest code point. Ink is light on dark. Each image has a rotation, scale, shift and
    contrast of its own, uniform in the ranges above, and Gaussian noise, all a pure function of
    (seed, character, face). Classes come in a fixed shuffled order whatever the seed, so that the
    first N and the next M mix scripts alike; `glyphs(N)` holds the first N classes of `glyphs()`.

    Args:
        num_classes: how many classes to render, from the first on. None: all.
        seed: whole number, 0 to 2^64 - 1.

    Returns:
        An `ImageTable` with uint8 `arrays` [12 * num_classes, 32, 32, 1], rows ordered by class,
        then face, and names such as `U+00E9 é`.

    Raises:
        ValueError: `num_classes` is not from 1 to the number of classes, or `seed` out of range.
    """
    seed = check_whole("seed", seed)
    if not 0 <= seed < 2**64:
        raise ArgumentError(
            f"seed must be a whole number from 0 to 2^64 - 1. Received: seed={seed!r}"
        )
    fonts, characters = _fonts(), _characters()
    if num_classes is None:
        num_classes = len(characters)
    is_number = isinstance(num_classes, numbers.Integral) and not isinstance(num_classes, bool)
    if not is_number or not 1 <= num_classes <= len(characters):
        raise ArgumentError(
            f"num_classes must be None or from 1 to {len(characters)}, the number of glyph "
            f"classes. Received: num_classes={num_classes!r}"
        )
    characters = characters[:num_classes]
    images = np.concatenate([_class_images(fonts, c, seed) for c in characters])
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

    # The basic layout is in every build of Pillow; the other one, where present, may differ.
    layout = ImageFont.Layout.BASIC
    return [ImageFont.truetype(path, _EM, layout_engine=layout) for path in _paths()]


def _common_characters() -> list[str]:
    """Characters that every face has a drawing for, by code point."""
    from matplotlib.ft2font import FT2Font

    codes = set.intersection(*(set(FT2Font(path).get_charmap()) for path in _paths()))
    # Categories M, Z, C: combining marks, spaces, controls. They have no drawing of their own.
    return [c for c in map(chr, sorted(codes)) if unicodedata.category(c)[0] not in "MZC"]


@functools.cache
def _characters() -> list[str]:
    """The classes in their fixed order: of each set of homoglyphs the lowest code point."""
    fonts = _fonts()
    characters, drawings = [], []
    for character in _common_characters():
        drawn = [_draw(font, character) for font in fonts]
        inked = [drawing for drawing in drawn if drawing is not None]
        if len(inked) == len(fonts):
            characters.append(character)
            drawings.append(np.concatenate([np.asarray(d.reduce(2)) for d in inked]))
    homoglyphs = _repeats(np.stack(drawings))
    distinct = (c for row, c in enumerate(characters) if row not in homoglyphs)
    # A digest of the character itself orders them: no two swap places when another one is added.
    return sorted(distinct, key=lambda c: hashlib.sha256(c.encode()).digest())


def _repeats(drawings: np.ndarray) -> set[int]:
    """Rows that look the same as a row before them which is no such repeat itself."""
    # Two million pairs are slow to compare in full; one product over the first face leaves few.
    first = drawings[:, :IMAGE_SIZE].reshape(len(drawings), -1).astype(np.float32)
    first /= np.linalg.norm(first, axis=1, keepdims=True)
    alike = np.argwhere(np.triu(first @ first.T > 0.9, 1))
    repeats = set()
    for earlier, later in alike.tolist():
        if earlier not in repeats and later not in repeats:
            difference = np.abs(np.subtract(*drawings[[earlier, later]], dtype=np.int16)).max()
            if difference <= _SAME:
                repeats.add(later)
    return repeats


def _draw(font: "ImageFont.FreeTypeFont", character: str) -> "Image.Image | None":
    """The clean drawing: standing on the baseline, centred across. None where nothing is drawn."""
    from PIL import Image, ImageDraw

    wide = Image.new("L", (2 * _DRAWING, _DRAWING))
    ImageDraw.Draw(wide).text((_EM, _BASELINE), character, fill=255, font=font, anchor="ls")
    box = wide.getbbox()
    if box is None:
        return None
    # By the ink, not by the advance: homoglyphs of two scripts can differ in side bearings alone,
    # and no one could tell such classes apart once images are shifted.
    left = (box[0] + box[2] - _DRAWING) // 2
    return wide.crop((left, 0, left + _DRAWING, _DRAWING))


def _class_images(fonts: "list[ImageFont.FreeTypeFont]", character: str, seed: int) -> np.ndarray:
    """One character in every face, distorted: uint8 [12, 32, 32]."""
    from PIL import Image

    random = np.random.Generator(np.random.Philox(key=np.array([seed, ord(character)], np.uint64)))
    low, high = np.transpose([ROTATION, SCALE, SHIFT, SHIFT, CONTRAST])
    drawn = random.uniform(low, high, (len(fonts), 5))
    noise = random.standard_normal((len(fonts), IMAGE_SIZE, IMAGE_SIZE), dtype=np.float32)
    ink = np.empty(noise.shape, np.float32)
    for face, (font, (rotation, scale, x, y, _)) in enumerate(zip(fonts, drawn)):
        coefficients = _inverse_map(rotation, scale, x, y)
        drawing = cast("Image.Image", _draw(font, character))  # every face has one
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
    """Coefficients that take a pixel of the image to its point in the drawing, as Pillow asks."""
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
