"""The place that opens image files: only regular files, and only up to a size."""

from keras_dml._common.regular_files import MOST_BYTES, check_regular, read_regular
from keras_dml._common.types import StrPath
from pipelines.max_pixels import MOST_PIXELS

_BYTES_PER_PIXEL = 5


def most_bytes(max_pixels: int) -> int:
    """Return the largest size of an image file: 256 MB, or more for more than 50 million pixels."""
    return max(MOST_BYTES, _BYTES_PER_PIXEL * max_pixels)


def read_image(path: StrPath, max_pixels: int = MOST_PIXELS, first: int | None = None) -> bytes:
    """Read an image file.

    Args:
        path: The file.
        max_pixels: Most pixels of the image, which bound the size of the file.
        first: Number of bytes to read. None: the file.

    Raises:
        OSError: The file is missing, too large, a folder, a pipe, or a device.
    """
    return read_regular(path, most_bytes(max_pixels), first)


def check_image(path: StrPath, max_pixels: int = MOST_PIXELS) -> None:
    """Raise `OSError` as `read_image` does, without opening the file."""
    check_regular(path, most_bytes(max_pixels))
