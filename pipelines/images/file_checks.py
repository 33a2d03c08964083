"""Checks of the bytes of an image file before it is decoded."""

import re
import zlib
from collections.abc import Iterator

from keras_dml._common.errors import ArgumentError
from pipelines import heic
from pipelines.max_pixels import MOST_PIXELS

NO_IMAGE = "not a JPEG, PNG, WebP, BMP or GIF image"
"""The reason why a file of another format cannot be read."""

# Encoders write up to twenty scans. A scan takes only a dozen bytes, but over 1 ns per pixel.
MOST_SCANS = 50
# Segments before the first scan. A depth map of 50 MB has 800. Pillow takes 1 µs for each.
MOST_SEGMENTS = 10_000
# Bytes before the first scan that are outside of segments. Pillow reads them one by one.
_MOST_STRAY = 2**20
# Other formats of cameras and scanners: position of the signature, signature, name.
_UNSUPPORTED = (
    (4, b"ftypavi", "AVIF"),
    (0, b"II*\0", "TIFF or camera raw"),
    (0, b"MM\0*", "TIFF or camera raw"),
)
# A marker in the data of a scan, except for stuffed 0xFF bytes and restarts.
_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_SCAN, _END, _BARE = 0xDA, 0xD9, (0x01, 0xD8)


# Decompressed bytes of the texts and the color profile of a PNG. libpng decompresses them twice.
_MOST_TEXT = 16 * 2**20
_PNG_TEXTS = (b"zTXt", b"iTXt", b"iCCP")
# Numbers per pixel of a PNG by its color type. A palette has one.
_PNG_NUMBERS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
# Bytes that zlib gets and returns at a time. They stay in the cache of the processor.
_STEP = 2**14
_GIF_EXTENSION, _GIF_IMAGE, _GIF_END = b"!,;"


def readable(encoded: bytes, max_pixels: int = MOST_PIXELS) -> bytes:
    """Return a file that TensorFlow can decode at a cost that its number of pixels bounds.

    A HEIC photograph becomes a PNG. A GIF keeps only its first image, because TensorFlow decodes
    all images first.

    Raises:
        ValueError: The file is too costly, or as for `heic.as_png`.
    """
    if heic.is_heic(encoded):
        return heic.as_png(encoded, max_pixels)
    costly = why_too_costly(encoded, max_pixels)
    if costly is not None:
        raise ArgumentError(costly)
    end = _gif_blocks(encoded)[1] if encoded.startswith(b"GIF8") else 0
    return encoded[:end] + b";" if end else encoded


def why_too_costly(encoded: bytes, max_pixels: int = MOST_PIXELS) -> str | None:
    """Return why a file with few pixels takes too long to read, or None.

    Call this before Pillow opens the file, because Pillow reads all parts of the file.
    """
    if encoded.startswith(b"\xff\xd8"):
        return _why_costly_jpeg(encoded)
    if encoded.startswith(b"\x89PNG"):
        return _why_costly_png(encoded, max_pixels)
    if encoded.startswith(b"GIF8") and _gif_blocks(encoded)[0] > _most_gif_blocks(encoded):
        return "a GIF of too many small blocks"
    return None


def _why_costly_png(encoded: bytes, max_pixels: int) -> str | None:
    """Return why a PNG has more data than pixels, or None."""
    width, height = (int.from_bytes(encoded[place : place + 4]) for place in (16, 20))
    depth, color = (int.from_bytes(encoded[place : place + 1]) for place in (24, 25))
    row = -(-width * _PNG_NUMBERS.get(color, 4) * depth // 8)
    # A row has one byte more, and with interlacing at most two. The last pass has seven more.
    pixels = _Inflation(height * (row + 2) + 16)
    texts = _Inflation(_MOST_TEXT)
    most = MOST_SEGMENTS + len(encoded) // 256
    # The check of the pixels refuses a larger image before it is decoded.
    is_decoded = width * height <= max_pixels
    for number, (kind, data) in enumerate(_png_chunks(encoded)):
        if number == most:
            return f"a PNG of more than {most:,} parts"
        if kind == b"IDAT" and is_decoded and pixels.exceeds(data):
            return "a PNG with more data than its pixels have"
        if kind in _PNG_TEXTS:
            texts.restart()
            if texts.exceeds(data[_text_start(kind, data) :]):
                return f"a PNG with more than {_MOST_TEXT >> 20} MB of text"
    return None


def _png_chunks(encoded: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the kind and the data of each part of a PNG."""
    place, view = 8, memoryview(encoded)
    while place < len(encoded):
        size = int.from_bytes(encoded[place : place + 4])
        yield encoded[place + 4 : place + 8], view[place + 8 : place + 8 + size]
        place += 12 + size


def _text_start(kind: bytes, data: memoryview) -> int:
    """Return the place of the compressed bytes in a text or color profile."""
    found = bytes(data if kind == b"iTXt" else data[:_STEP])
    # A name, 0, and the method. A text in UTF-8 has the flag, the method, and two more names.
    start = found.find(0) + 2
    if kind == b"iTXt":
        if not found[start - 1 : start].strip(b"\0"):
            return len(data)  # not compressed
        start = found.find(0, found.find(0, start + 1) + 1) + 1
    return start


class _Inflation:
    """A count of the bytes that zlib streams decompress to.

    Args:
        most: Largest number of bytes.
    """

    def __init__(self, most: int) -> None:
        self._left = most
        self.restart()

    def restart(self) -> None:
        """Begin the next stream."""
        self._stream = zlib.decompressobj()

    def exceeds(self, data: memoryview) -> bool:
        """Return whether the next bytes of the stream lead to more than `most` bytes."""
        for start in range(0, len(data), _STEP):
            part: bytes | memoryview = data[start : start + _STEP]
            while part and not self._stream.eof:
                try:
                    found = self._stream.decompress(part, _STEP)
                except zlib.error:  # the decoder stops here, too
                    return False
                self._left -= len(found)
                if self._left < 0:
                    return True
                part = self._stream.unconsumed_tail
        return False


def _most_gif_blocks(encoded: bytes) -> int:
    return MOST_SEGMENTS + len(encoded) // 64


def _gif_blocks(encoded: bytes) -> tuple[int, int]:
    """Return the number of blocks of a GIF, and the end of its first image. 0: no whole image."""
    blocks, first, most = 0, 0, _most_gif_blocks(encoded)
    place = 13 + _gif_colors(encoded[10:11])
    while place < len(encoded) and blocks <= most:
        kind, blocks = encoded[place], blocks + 1
        if kind == _GIF_END:
            break
        if kind not in (_GIF_IMAGE, _GIF_EXTENSION):  # decoders skip other bytes
            place += 1
            continue
        colors = _gif_colors(encoded[place + 9 : place + 10])
        place += 11 + colors if kind == _GIF_IMAGE else 2
        while place < len(encoded) and encoded[place] and blocks <= most:
            place, blocks = place + 1 + encoded[place], blocks + 1
        place += 1
        if kind == _GIF_IMAGE and not first and place <= len(encoded):
            first = place
    return blocks, first


def _gif_colors(flags: bytes) -> int:
    """Return the number of bytes of a table of colors."""
    return 3 * 2 ** (flags[0] % 8 + 1) if flags and flags[0] & 0x80 else 0


def _why_costly_jpeg(encoded: bytes) -> str | None:
    """Return why a JPEG has too many scans, segments, or stray bytes, or None."""
    scans, segments, stray, place = 0, 0, 0, 2
    # Go from marker to marker up to the end of the image. A preview or a video can follow it.
    while found := _MARKER.search(encoded, place):
        if not scans:
            segments, stray = segments + 1, stray + found.start() - place
        if segments > MOST_SEGMENTS:
            return f"a JPEG of more than {MOST_SEGMENTS:,} segments"
        if stray > _MOST_STRAY:
            return "a JPEG with more than 1 MiB between its segments"
        code, place = encoded[found.start() + 1], found.end()
        if code == _END:
            return None
        scans += code == _SCAN
        if scans > MOST_SCANS:
            return f"a JPEG of more than {MOST_SCANS} scans"
        if code not in _BARE:
            place += int.from_bytes(encoded[place : place + 2])
    return None


def why_unsupported(head: bytes) -> str | None:
    """Return the reason if a file starts like an image in an unsupported format, or None.

    Args:
        head: The first 12 bytes of the file, or more.
    """
    if heic.is_heic(head) and not heic.can_be_read():
        return heic.NEEDS_PACKAGE
    for start, mark, name in _UNSUPPORTED:
        if head.startswith(mark, start):
            return f"{NO_IMAGE}: {name}, convert it to JPEG"
    return None
