"""Text files of tables and lists: UTF-8, with or without a byte-order mark."""

import codecs
import os

from keras_dml._common.errors import ArgumentError
from keras_dml._common.regular_files import MOST_TEXT, read_regular

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def text_bytes(path: str | os.PathLike[str]) -> bytes:
    """Read a file of UTF-8 lines without its byte-order mark. The bytes are not decoded.

    Raises:
        ValueError: The file is UTF-16, or its lines end with carriage returns only.
        OSError: The file cannot be read, is not a regular file, or is larger than `MOST_TEXT`.
    """
    content = read_regular(path, MOST_TEXT)
    # Without a byte-order mark, UTF-16 has a zero in its first two characters, unless both are
    # outside of Latin-1.
    if content.startswith(_UTF16) or b"\0" in content[:4]:
        raise ArgumentError(f"{path} must be text in UTF-8, but got UTF-16. Save it as UTF-8.")
    if b"\r" in content and b"\n" not in content:
        raise ArgumentError(
            f"{path} must have lines that end with a line feed, but got carriage returns only. "
            "Save it with line ends of Unix or Windows."
        )
    return content.removeprefix(codecs.BOM_UTF8)
