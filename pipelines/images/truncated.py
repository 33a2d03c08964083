"""The reason why an image file that cannot be read is too short."""

import re

# A marker in the data of a scan of a JPEG, except for stuffed 0xFF bytes and restarts.
_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_END, _BARE = 0xD9, (0x01, 0xD8)


def why_truncated(encoded: bytes) -> str | None:
    """Return the reason if a JPEG, PNG, or WebP file ends too early, or None.

    Call this for a file that cannot be decoded: some encoders leave out the end of an image, and
    most decoders accept that.
    """
    if encoded.startswith(b"\xff\xd8"):
        return None if _has_end(encoded) else "a truncated JPEG"
    if encoded.startswith(b"\x89PNG"):
        return None if b"IEND" in encoded else "a truncated PNG"
    if encoded[:4] == b"RIFF" and encoded[8:12] == b"WEBP":
        size = 8 + int.from_bytes(encoded[4:8], "little")
        return "a truncated WebP" if len(encoded) < size else None
    return None


def _has_end(encoded: bytes) -> bool:
    """Return whether a JPEG has an end marker. The end of a preview is inside of a segment."""
    place = 2
    while found := _MARKER.search(encoded, place):
        code, place = encoded[found.start() + 1], found.end()
        if code == _END:
            return True
        if code not in _BARE:
            place += int.from_bytes(encoded[place : place + 2])
    return False
