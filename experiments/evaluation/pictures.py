"""Small pictures of image files, to be shown on a page. Those need TensorFlow."""

import io
import os
import pathlib
import warnings
from typing import IO, TypeAlias

import numpy as np
from PIL import Image

from keras_dml._common.errors import ArgumentError
from pipelines.images.limits import MOST_PIXELS, too_large, why_too_costly

# A path, or an open binary file.
Source: TypeAlias = str | os.PathLike[str] | IO[bytes]
# On the longer side: enough for a dense screen.
SIDE = 320
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
# What turns the pixels of an EXIF orientation upright.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Its limit is not ours: see `_open`.
warnings.simplefilter("ignore", Image.DecompressionBombWarning)
Image.MAX_IMAGE_PIXELS = None


def checked_picture(encoded: bytes, max_pixels: int = MOST_PIXELS) -> bytes:
    """An image file that may be anything, looked at before a model decodes it.

    Args:
        encoded: `bytes`.
        max_pixels: how many pixels it may have.

    Returns:
        `encoded`; of an animated GIF the first frame alone, as a PNG.

    Raises:
        ValueError: no image, an animated WebP, more than `max_pixels`, a JPEG of too many scans or
            segments, a damaged GIF.
    """
    image = _open(encoded, max_pixels)
    if image.format != "GIF" or not _is_animated(image):
        return encoded
    # TensorFlow decodes every frame, at the size of the largest: 200 KB can take 8 GB.
    return _png(_loaded(image, "black"))


def thumbnail(source: Source, max_pixels: int = MOST_PIXELS, side: int = SIDE) -> tuple[bytes, str]:
    """An image file, made small.

    As the models see it: the first frame, whatever is transparent on white, turned upright.

    Args:
        source: path or open binary file.
        max_pixels: how many pixels it may have.
        side: how many pixels the longer side of the small one has, at most.

    Returns:
        `(bytes, kind)`: a PNG of the same pixels, or a JPEG of at most `side` pixels; kind is "png"
        or "jpeg". Neither says an orientation any more.

    Raises:
        ValueError: as `checked_picture`, or the image is damaged.
    """
    image = _upright(source, max_pixels, side)
    if max(image.size) <= side:
        return _png(image), "png"
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85)
    return file.getvalue(), "jpeg"


def whole_picture(source: Source, max_pixels: int = MOST_PIXELS) -> np.ndarray:
    """All pixels of an image file, uint8 `[h, w, 3]`, as the models see it; see `thumbnail`."""
    return np.asarray(_upright(source, max_pixels))


def _upright(source: Source, max_pixels: int, side: int | None = None) -> Image.Image:
    """The pixels, RGB, turned upright; with `side` maybe fewer of them, but no fewer than that."""
    encoded = _bytes(source)
    image = _open(encoded, max_pixels)
    turn = _TURNS.get(_orientation(encoded))
    if side is not None:
        image.draft("RGB", (side, side))
    image = _loaded(image, "white")
    return image if turn is None else image.transpose(turn)


def _bytes(source: Source) -> bytes:
    if isinstance(source, str | os.PathLike):
        return pathlib.Path(source).read_bytes()
    source.seek(0)
    return source.read()


def _orientation(encoded: bytes) -> int:
    """The EXIF orientation, read as for the models: not by Pillow, which looks into XMP as well."""
    import tensorflow as tf

    from pipelines.images.orientation import read_orientation

    return int(read_orientation(tf.constant(encoded)))


def _open(encoded: bytes, max_pixels: int) -> Image.Image:
    costly = why_too_costly(encoded)
    if costly is not None:
        raise ArgumentError(costly)
    try:
        image = Image.open(io.BytesIO(encoded), formats=_FORMATS)
    except Image.DecompressionBombError as error:
        raise ArgumentError(too_large(max_pixels)) from error
    except Exception as error:  # of a damaged file Pillow raises anything
        raise ArgumentError("not a JPEG, PNG, WebP, BMP or GIF image") from error
    if image.width * image.height > max_pixels:
        raise ArgumentError(too_large(max_pixels))
    if image.format == "WEBP" and _is_animated(image):
        raise ArgumentError("an animated WebP: only still images can be read")
    return image


def _is_animated(image: Image.Image) -> bool:
    """Whether it has several frames, for which Pillow reads to the end of the file."""
    try:
        return getattr(image, "is_animated", False)
    except Exception as error:  # IndexError, struct.error and others of a file that is cut
        raise ArgumentError(f"a damaged image ({error})") from error


def _loaded(image: Image.Image, background: str) -> Image.Image:
    """The pixels, RGB."""
    try:
        if image.mode.startswith("I"):  # 16 bits: Pillow would cut them off at 255
            return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
        if image.has_transparency_data:
            image = image.convert("RGBA")
            ground = Image.new("RGBA", image.size, background)
            return Image.alpha_composite(ground, image).convert("RGB")
        return image.convert("RGB")
    except Exception as error:
        raise ArgumentError(f"a damaged image ({error})") from error


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
