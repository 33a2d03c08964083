"""Small pictures of image files for a page. Needs TensorFlow."""

import io
import os
from typing import IO, TypeAlias

import tensorflow as tf
from PIL import Image

from pipelines import heic
from pipelines.image_files import read_image
from pipelines.images.orientation import read_orientation
from pipelines.images.pillow_decode import is_animated, open_image, rgb_pixels, turned_upright
from pipelines.max_pixels import MOST_PIXELS

# A path or an open binary file.
Source: TypeAlias = str | os.PathLike[str] | IO[bytes]
# Longest side, enough for a dense screen.
SIDE = 320


def checked_picture(encoded: bytes, max_pixels: int = MOST_PIXELS) -> bytes:
    """Check an untrusted image file before a model decodes it.

    Args:
        encoded: Content of the file.
        max_pixels: Largest number of pixels.

    Returns:
        The content, or a PNG: of a HEIC photograph, or of the first frame of an animated GIF.

    Raises:
        ValueError: The content is not an image, an animated WebP, or a damaged GIF, has more than
            `max_pixels`, or is too costly, such as a JPEG of many scans.
    """
    encoded = heic.as_png(encoded, max_pixels)
    image = open_image(encoded, max_pixels)
    if image.format != "GIF" or not is_animated(image):
        return encoded
    # TensorFlow decodes every frame at the size of the largest: a 200 KB file can need 8 GB.
    return _png(rgb_pixels(image, "black"))


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
    encoded = heic.as_png(_bytes(source, max_pixels), max_pixels)
    image = open_image(encoded, max_pixels)
    image.draft("RGB", (side, side))  # a JPEG is decoded at a smaller size
    # The orientation as the models read it. Pillow would read XMP too.
    orientation = int(read_orientation(tf.constant(encoded)))
    return encoded_picture(turned_upright(rgb_pixels(image, "white"), orientation), side)


def _bytes(source: Source, max_pixels: int) -> bytes:
    if isinstance(source, str | os.PathLike):
        return read_image(source, max_pixels)
    source.seek(0)
    return source.read()


def encoded_picture(
    image: Image.Image, side: int, whole_up_to: int | None = None
) -> tuple[bytes, str]:
    """Return a picture as the content of an image file, and "png" or "jpeg".

    Args:
        image: The picture. A large one is made smaller in place.
        side: Longest side of a JPEG.
        whole_up_to: Longest side of a PNG with all pixels. The default is `side`.
    """
    if max(image.size) <= (side if whole_up_to is None else whole_up_to):
        return _png(image), "png"
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85, optimize=True)
    return file.getvalue(), "jpeg"


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()
