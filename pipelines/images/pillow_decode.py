"""Needs Pillow. Decodes untrusted image files to the same pixels as TensorFlow."""

import io
import warnings

import numpy as np
from PIL import Image

from keras_dml._common.errors import ArgumentError
from pipelines.images.file_checks import NO_IMAGE, why_too_costly, why_unsupported
from pipelines.images.truncated import why_truncated
from pipelines.max_pixels import too_large

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
_ORIENTATION = 0x0112
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
# `open_image` has its own limit.
warnings.simplefilter("ignore", Image.DecompressionBombWarning)
Image.MAX_IMAGE_PIXELS = None


def open_image(encoded: bytes, max_pixels: int) -> Image.Image:
    """Open an image file without decoding its pixels.

    Raises:
        ValueError: The content is not an image or an animated WebP, has more than `max_pixels`, or
            is too costly, such as a JPEG of many scans.
    """
    costly = why_too_costly(encoded, max_pixels)
    if costly is not None:
        raise ArgumentError(costly)
    try:
        image = Image.open(io.BytesIO(encoded), formats=_FORMATS)
    except Image.DecompressionBombError as error:
        raise ArgumentError(too_large(max_pixels)) from error
    except Exception as error:  # Pillow raises any exception for a damaged file
        reason = why_unsupported(encoded) or why_truncated(encoded) or NO_IMAGE
        raise ArgumentError(reason) from error
    if image.width * image.height > max_pixels:
        raise ArgumentError(too_large(max_pixels))
    if image.format == "WEBP" and is_animated(image):
        raise ArgumentError("an animated WebP: only still images can be read")
    return image


def is_animated(image: Image.Image) -> bool:
    """Return whether the image has several frames."""
    try:
        return getattr(image, "is_animated", False)
    except Exception as error:  # IndexError, struct.error, and others for a truncated file
        raise ArgumentError(f"a damaged image ({error})") from error


def rgb_pixels(image: Image.Image, background: str) -> Image.Image:
    """Decode the pixels to RGB, with a color for transparent pixels.

    Raises:
        ValueError: The file is damaged.
    """
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


def orientation_of(image: Image.Image) -> int:
    """Return the orientation in the EXIF of an open image, 1 to 8. Damaged EXIF counts as 1."""
    exif = Image.Exif()
    try:
        # `Image.getexif` would also read the orientation in XMP.
        exif.load(image.info.get("exif", b""))
        orientation = exif.get(_ORIENTATION, 1)
    except Exception:  # Pillow raises any exception for damaged EXIF
        return 1
    return orientation if orientation in range(1, 9) else 1


def turned_upright(image: Image.Image, orientation: int) -> Image.Image:
    """Turn the stored pixels of an image upright."""
    turn = _TURNS.get(orientation)
    return image if turn is None else image.transpose(turn)
