"""Pictures and the bytes of image files."""

import functools
import io
import struct
import zlib

import numpy as np
from PIL import Image


def smooth(width, height, channels=3, seed=0):
    """Return a smooth picture that differs in all eight orientations."""
    noise = np.random.default_rng(seed).integers(0, 256, (5, 6, channels), dtype=np.uint8)
    return Image.fromarray(noise.squeeze()).resize((width, height), Image.Resampling.BICUBIC)


def encode(image, file_format, **options):
    """Return the file that Pillow writes."""
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def animated(file_format, width, height):
    """Return a file of two pictures."""
    first, second = (smooth(width, height, seed=seed) for seed in (0, 1))
    return encode(first, file_format, save_all=True, append_images=[second], duration=50)


def png(width, height, bits, color_type, rows, *chunks, stored=False):
    """Return a PNG of these scan lines, also of kinds that Pillow does not write.

    Args:
        width, height, bits, color_type: fields of the header.
        rows: bytes of the scan lines, each after its filter.
        chunks: pairs (kind, data) before the pixels.
        stored: whether the rows are compressed already.
    """
    header = struct.pack(">IIBBBBB", width, height, bits, color_type, 0, 0, 0)
    data = rows if stored else zlib.compress(rows, 9)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", data), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


@functools.cache
def readable_files(width, height):
    """Return files of every readable kind and orientation, by name.

    The pictures have this size after their orientation is applied.
    """
    rgb, gray, rgba = (smooth(width, height, channels) for channels in (3, 1, 4))
    files = {
        "jpeg": encode(rgb, "JPEG"),
        "jpeg_progressive": encode(rgb, "JPEG", progressive=True),
        "jpeg_gray": encode(gray, "JPEG"),
        "jpeg_cmyk": encode(rgb.convert("CMYK"), "JPEG"),
        "png": encode(rgb, "PNG"),
        "png_gray": encode(gray, "PNG"),
        "png_1_bit": encode(gray.convert("1"), "PNG"),
        "png_palette": encode(rgb.quantize(16), "PNG"),
        "png_palette_transparent": encode(rgb.quantize(16), "PNG", transparency=3),
        "png_gray_alpha": encode(rgba.convert("LA"), "PNG"),
        "png_rgba": encode(rgba, "PNG"),
        "png_animated": animated("PNG", width, height),
        "webp": encode(rgb, "WEBP", lossless=True),
        "webp_lossy": encode(rgb, "WEBP"),
        "webp_rgba": encode(rgba, "WEBP", lossless=True),
        "bmp": encode(rgb, "BMP"),
        "bmp_palette": encode(rgb.quantize(16), "BMP"),
        "bmp_32_bit": encode(rgba, "BMP"),
        "gif": encode(rgb.quantize(64), "GIF"),
        "gif_animated": animated("GIF", width, height),
    }
    for orientation in range(2, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        stored = rgb if orientation < 5 else rgb.transpose(Image.Transpose.TRANSPOSE)
        files |= {
            f"jpeg_turned_{orientation}": encode(stored, "JPEG", exif=exif),
            f"png_turned_{orientation}": encode(stored, "PNG", exif=exif),
            f"webp_turned_{orientation}": encode(stored, "WEBP", exif=exif, lossless=True),
        }
    return files
