"""Checks of the bytes of an image file before it is decoded."""

import re

from pipelines import heic

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


def why_too_costly(encoded: bytes) -> str | None:
    """Return why a JPEG file with few pixels takes too long to read, or None.

    Thousands of scans, empty segments, or stray bytes take seconds. Call this before Pillow opens
    the file, because Pillow reads all segments of the file.
    """
    if not encoded.startswith(b"\xff\xd8"):
        return None
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
