"""HEIC photographs, read with the optional package pillow-heif.

TensorFlow has no decoder for HEIC. The readers of image files therefore convert a HEIC file to a
PNG file of the same pixels.
"""

import importlib.util
import io
import re

from keras_dml._common.errors import ArgumentError
from pipelines.max_pixels import MOST_PIXELS, too_large

EXTENSIONS = (".heic", ".heif")
"""Extensions of HEIC files, in lower case."""

BRANDS = "ftyp(he..|mif1|msf1)"
"""Regular expression for the bytes 4 to 11 of a HEIC file."""


def can_be_read() -> bool:
    """Return whether pillow-heif is installed."""
    return importlib.util.find_spec("pillow_heif") is not None


def is_heic(encoded: bytes) -> bool:
    """Return whether a file starts like a HEIC file."""
    return re.fullmatch(BRANDS.encode(), encoded[4:12]) is not None


def as_png(encoded: bytes, max_pixels: int = MOST_PIXELS) -> bytes:
    """Convert a HEIC file to a PNG file of its upright pixels, without loss.

    Args:
        encoded: The bytes of an image file. Files of other formats are returned unchanged.
        max_pixels: Most pixels that the image can have.

    Raises:
        ValueError: pillow-heif is not installed, the file is damaged, or the image has more than
            `max_pixels`.
    """
    if not is_heic(encoded):
        return encoded
    if not can_be_read():
        raise ArgumentError(NEEDS_PACKAGE)
    import pillow_heif
    from PIL import Image, ImageOps

    pillow_heif.register_heif_opener()
    try:
        image = Image.open(io.BytesIO(encoded))
        small_enough = image.width * image.height <= max_pixels
        png = io.BytesIO()
        if small_enough:
            ImageOps.exif_transpose(image).save(png, "PNG", compress_level=1)
    except Exception as error:  # a damaged file may raise any exception
        raise ArgumentError(f"a damaged HEIC image ({error})") from error
    if not small_enough:
        raise ArgumentError(too_large(max_pixels))
    return png.getvalue()


NEEDS_PACKAGE = (
    "not a JPEG, PNG, WebP, BMP or GIF image: HEIC, which the package pillow-heif reads. Run "
    "pip install pillow-heif, or convert the file to JPEG"
)
"""The reason why a HEIC file cannot be read."""
