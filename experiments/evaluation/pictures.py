"""Small pictures of image files for a page. Needs TensorFlow."""

import io
import os
import pathlib
import warnings
from typing import IO, TypeAlias

import numpy as np
from PIL import Image

from keras_dml._common.errors import ArgumentError
from pipelines import heic
from pipelines.images.bad_images import why_unsupported
from pipelines.images.limits import MOST_PIXELS, too_large, why_too_costly

# A path or an open binary file.
Source: TypeAlias = str | os.PathLike[str] | IO[bytes]
# Longest side, enough for a dense screen.
SIDE = 320
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
# EXIF orientation -> the operation that turns the pixels upright.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# `_open` has its own limit.
warnings.simplefilter("ignore", Image.DecompressionBombWarning)
Image.MAX_IMAGE_PIXELS = None


def checked_picture(encoded: bytes, max_pixels: int = MOST_PIXELS) -> bytes:
    """Check an untrusted image file before a model decodes it.

    Args:
        encoded: Content of the file.
        max_pixels: Largest number of pixels.

    Returns:
        The content, or a PNG: of a HEIC photograph, or of the first frame of an animated GIF.

    Raises:
        ValueError: The content is not an image, an animated WebP, or a damaged GIF, has more than
            `max_pixels`, or is a JPEG with too many scans or segments.
    """
    encoded = heic.as_png(encoded, max_pixels)
    image = _open(encoded, max_pixels)
    if image.format != "GIF" or not _is_animated(image):
        return encoded
    # TensorFlow decodes every frame at the size of the largest: a 200 KB file can need 8 GB.
    return _png(_loaded(image, "black"))


def thumbnail(source: Source, max_pixels: int = MOST_PIXELS, side: int = SIDE) -> tuple[bytes, str]:
    """Return a small picture of an image file.

    As for a model, it is the first frame, turned upright, with white for transparent pixels.

    Args:
        source: Path or open binary file.
        max_pixels: Largest number of pixels.
        side: Longest side of the picture.

    Returns:
        `(bytes, kind)`: a PNG of the same pixels or a smaller JPEG, without an orientation. The
        kind is "png" or "jpeg".

    Raises:
        ValueError: As `checked_picture`, or the image is damaged.
    """
    image = _upright(source, max_pixels, side)
    if max(image.size) <= side:
        return _png(image), "png"
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85)
    return file.getvalue(), "jpeg"


def whole_picture(source: Source, max_pixels: int = MOST_PIXELS) -> np.ndarray:
    """Return all pixels of an image file, uint8 `[h, w, 3]`, as `thumbnail`."""
    return np.asarray(_upright(source, max_pixels))


def _upright(source: Source, max_pixels: int, side: int | None = None) -> Image.Image:
    """Return the RGB pixels, turned upright. With `side`, a JPEG is decoded at a smaller size."""
    encoded = heic.as_png(_bytes(source), max_pixels)
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
    """Return the EXIF orientation as the models read it. Pillow would read XMP too."""
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
    except Exception as error:  # Pillow raises any exception for a damaged file
        reason = why_unsupported(encoded) or "not a JPEG, PNG, WebP, BMP or GIF image"
        raise ArgumentError(reason) from error
    if image.width * image.height > max_pixels:
        raise ArgumentError(too_large(max_pixels))
    if image.format == "WEBP" and _is_animated(image):
        raise ArgumentError("an animated WebP: only still images can be read")
    return image


def _is_animated(image: Image.Image) -> bool:
    """Return whether the image has several frames."""
    try:
        return getattr(image, "is_animated", False)
    except Exception as error:  # IndexError, struct.error, and others for a truncated file
        raise ArgumentError(f"a damaged image ({error})") from error


def _loaded(image: Image.Image, background: str) -> Image.Image:
    """Return the pixels as RGB."""
    try:
        if image.mode.startswith("I"):  # 16 bits: Pillow would clip them at 255
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
