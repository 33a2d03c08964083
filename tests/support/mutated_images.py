"""Damaged or malicious variants of tiny images of every format."""

import struct
import zlib

import mutations
import numpy as np
from image_files import animated, encode, readable_files, smooth

_EXTENSIONS = (".jpg", ".JPEG", ".png", ".webp", ".bmp", ".gif")
_PNG = b"\x89PNG\r\n\x1a\n"
# Numbers for a header: zero, huge, negative, and values and types of EXIF.
_NUMBERS = (0, 1, 2, 4, 6, 9, 255, 256, 2047, 16383, 65535, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
_FILES = readable_files(23, 31) | {
    "jpeg with restarts": encode(smooth(23, 31), "JPEG", restart_marker_blocks=1),
    "animated webp": animated("WEBP", 23, 31),
}


def _summed(content):
    """Recompute the checksums of a PNG's chunks."""
    place = 8 if content.startswith(_PNG) else len(content)
    while place + 12 <= len(content):
        end = place + 8 + int.from_bytes(content[place : place + 4])
        checksum = struct.pack(">I", zlib.crc32(content[place + 4 : end]))
        content = content[:end] + checksum + content[end + 4 :]
        place = end + 4
    return content


def _other_number(content, rng):
    """Write a number into the first bytes, where the size and EXIF are, with a valid checksum."""
    number, size = int(rng.choice(_NUMBERS)), int(rng.integers(1, 5))
    piece = (number % 256**size).to_bytes(size, str(rng.choice(["big", "little"])))
    place = int(rng.integers(rng.choice([40, 200])))
    changed = content[:place] + piece + content[place + size :]
    return f"{number} at {place}", _summed(changed)


def _other_inside(content, rng):
    """Insert another file after the first bytes, at the end, or in the middle."""
    name = str(rng.choice(list(_FILES)))
    place = int(rng.choice([2, 3, 8, 12, 32, len(content) // 2, len(content)]))
    kept = int(rng.integers(2)) * (len(content) - place)
    end = content[place : place + kept]
    return f"a {name} at {place}", content[:place] + _FILES[name] + end


_MUTATIONS = (*mutations.OF_BYTES, *5 * [_other_number], _other_inside)


def mutated_image(seed):
    """Return (the mutation, a file name, bytes); one image in ten is unchanged."""
    rng = np.random.default_rng([seed, 15])
    name = str(rng.choice(list(_FILES)))
    said, content = "unchanged", _FILES[name]
    if rng.random() > 0.1:
        said, content = mutations.mutated(content, rng, _MUTATIONS)
    kind = _EXTENSIONS[rng.integers(len(_EXTENSIONS))]
    return f"{name}: {said}", f"{seed}{kind}", content
