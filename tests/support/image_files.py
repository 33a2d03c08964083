"""The bytes of image files."""

import io
import struct
import zlib


def encode(image, file_format, **options):
    """Return the file that Pillow writes."""
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def png(width, height, bits, color_type, rows, *chunks):
    """Return a PNG of these scan lines, also of kinds that Pillow does not write.

    Args:
        width, height, bits, color_type: fields of the header.
        rows: bytes of the scan lines, each after its filter.
        chunks: pairs (kind, data) before the pixels.
    """
    header = struct.pack(">IIBBBBB", width, height, bits, color_type, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
