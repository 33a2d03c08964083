"""Tiny images of every format, and damaged or malicious variants of them."""

import functools
import struct
import zlib

import mutations
import numpy as np
from image_files import encode
from PIL import Image

EXTENSIONS = (".jpg", ".JPEG", ".png", ".webp", ".bmp", ".gif")
_PNG = b"\x89PNG\r\n\x1a\n"
# Sizes for a header: zero, huge, negative.
_SIZES = (0, 1, 2, 7, 255, 256, 2047, 16383, 65535, 2**24, 2**31 - 1, 2**31, 2**32 - 1)


def _picture(mode="RGB", seed=0, size=(23, 31)):
    """Return a smooth picture that looks different in all eight orientations."""
    channels = {"RGB": 3, "L": 1, "RGBA": 4}[mode]
    noise = np.random.default_rng(seed).integers(0, 256, (3, 4, channels), dtype=np.uint8)
    return Image.fromarray(noise.squeeze()).resize(size, Image.Resampling.BICUBIC)


def _orientation(number):
    exif = Image.Exif()
    exif[0x0112] = number
    return exif


@functools.cache
def good_images():
    """Return (name, bytes) of valid images."""
    rgb, grey, rgba = _picture(), _picture("L"), _picture("RGBA")
    palette = rgb.quantize(16)
    film = {"save_all": True, "append_images": [_picture(seed=1), _picture(seed=2)]}
    images = {
        "jpeg": encode(rgb, "JPEG"),
        "progressive jpeg": encode(rgb, "JPEG", progressive=True),
        "jpeg with restarts": encode(rgb, "JPEG", restart_marker_blocks=1),
        "gray jpeg": encode(grey, "JPEG"),
        "cmyk jpeg": encode(rgb.convert("CMYK"), "JPEG"),
        "png": encode(rgb, "PNG"),
        "gray png": encode(grey, "PNG"),
        "palette png": encode(palette, "PNG", transparency=3),
        "1 bit png": encode(grey.convert("1"), "PNG"),
        "16 bit png": encode(Image.fromarray(np.asarray(grey).astype("u2") << 8), "PNG"),
        "rgba png": encode(rgba, "PNG"),
        "animated png": encode(rgb, "PNG", **film),
        "webp": encode(rgb, "WEBP"),
        "lossless webp": encode(rgb, "WEBP", lossless=True),
        "rgba webp": encode(rgba, "WEBP"),
        "animated webp": encode(rgb, "WEBP", **film),
        "bmp": encode(rgb, "BMP"),
        "palette bmp": encode(palette, "BMP"),
        "rgba bmp": encode(rgba, "BMP"),
        "gif": encode(palette, "GIF"),
        "animated gif": encode(palette, "GIF", **film),
    }
    for number in range(1, 9):
        for file_format in ("JPEG", "PNG", "WEBP"):
            name = f"{file_format.lower()} of orientation {number}"
            images[name] = encode(rgb, file_format, exif=_orientation(number))
    return tuple(images.items())


def _summed(content):
    """Recompute the checksums of a PNG's chunks."""
    place = 8 if content.startswith(_PNG) else len(content)
    while place + 12 <= len(content):
        end = place + 8 + int.from_bytes(content[place : place + 4])
        checksum = struct.pack(">I", zlib.crc32(content[place + 4 : end]))
        content = content[:end] + checksum + content[end + 4 :]
        place = end + 4
    return content


def _other_size(content, rng):
    """Write another size into the header, with a valid checksum."""
    value = _SIZES[rng.integers(len(_SIZES))]
    if content.startswith(_PNG):
        place, piece = int(rng.choice([16, 20, 8, 33])), struct.pack(">I", value % 2**32)
    elif content.startswith(b"\xff\xd8"):
        frames = [content.find(marker) for marker in (b"\xff\xc0", b"\xff\xc2")]
        place = max(frames) + int(rng.choice([2, 5, 7, 9]))
        piece = struct.pack(">H", value % 2**16)
    elif content.startswith(b"RIFF"):
        place, piece = int(rng.choice([4, 16, 24, 26, 27, 28])), struct.pack("<I", value % 2**32)
        piece = piece[: int(rng.choice([2, 3, 4]))]
    elif content.startswith(b"BM"):
        place = int(rng.choice([2, 10, 14, 18, 22, 28, 46]))
        piece = struct.pack("<I", value % 2**32)
    else:
        image = content.find(b"\x2c\0\0\0\0")
        place = int(rng.choice([6, 8, image + 5, image + 7]))
        piece = struct.pack("<H", value % 2**16)
    changed = content[:place] + piece + content[place + len(piece) :]
    return f"{value} at {place}", _summed(changed)


def _other_header(content, rng):
    """Flip bits in the first bytes, with a valid checksum."""
    what, changed = mutations.flipped(content, rng, within=64)
    return what, _summed(changed) if rng.integers(2) else changed


def _other_inside(content, rng):
    """Insert another file after the first bytes, at the end, or in the middle."""
    name, other = good_images()[rng.integers(len(good_images()))]
    place = int(rng.choice([2, 3, 8, 12, 32, len(content) // 2, len(content)]))
    kept = int(rng.integers(2)) * (len(content) - place)
    end = content[place : place + kept]
    return f"a {name} at {place}", content[:place] + other + end


def _other_orientation(content, rng):
    """Change the orientation, type, number of values, or byte order in EXIF."""
    place = content.find(b"\x12\x01\x03\0\x01\0\0\0")
    if place < 0:
        place = content.find(b"\x01\x12\0\x03\0\0\0\x01")
    if place < 0:
        return _other_header(content, rng)
    at = place + int(rng.choice([0, 2, 3, 4, 7, 8, 9, 10, -8, -10, -2]))
    changed = bytearray(content)
    changed[at] = int(rng.choice([0, 1, 3, 4, 6, 8, 9, 255]))
    return f"EXIF, byte {at} is {changed[at]}", _summed(bytes(changed))


_MUTATIONS = (
    *mutations.OF_BYTES, _other_header, _other_header, _other_size, _other_size, _other_inside,
    _other_orientation,
)  # fmt: skip


def mutated_image(seed):
    """Return (the mutation, a file name, bytes); one image in ten is unchanged."""
    rng = np.random.default_rng([seed, 15])
    name, content = good_images()[rng.integers(len(good_images()))]
    said = "unchanged"
    if rng.random() > 0.1:
        said, content = mutations.mutated(content, rng, _MUTATIONS)
    kind = EXTENSIONS[rng.integers(len(EXTENSIONS))]
    return f"{name}: {said}", f"{seed}{kind}", content
