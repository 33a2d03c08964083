"""Needs TensorFlow. The EXIF orientation of an image file.

TensorFlow's decoders return the pixels in their stored orientation. A rotated camera stores the
pixels of its sensor together with one of eight orientations. This is tag 0x0112 of EXIF, a TIFF
directory in a JPEG's APP1 segment, a PNG's `eXIf` chunk, or a WebP's `EXIF` chunk. (CIPA DC-008,
Exif 2.32, sections 4.5.4, 4.6.4, and 4.7.2.)

These functions never fail. EXIF that is damaged, cut off, or has another type or a value outside of
1 to 8 counts as missing. Like browsers, they ignore orientations in XMP and in the text of a PNG.

They are graph operations. A file without EXIF costs one search through its bytes.
"""

import functools

import tensorflow as tf

from pipelines.images.file_bytes import (
    big_endian,
    holds,
    is_jpeg,
    is_png,
    length,
    little_endian,
    numbers,
    part,
)

UPRIGHT = 1
_TAG, _SHORT = 0x0112, 3
_PREFIX = b"Exif\0\0"
_APP1, _IMAGE_BEGINS, _IMAGE_ENDS = 0xE1, 0xDA, 0xD9
# Segments without a length: TEM, RST0 to RST7, and SOI.
_BARE, _FIRST_BARE, _LAST_BARE = 0x01, 0xD0, 0xD8
_LOOKAHEAD = 64  # bytes
_EXIF_FLAG = 0x08  # in the VP8X chunk of a WebP
# A PNG of 80 MB has as many chunks. Millions of empty chunks in a hostile file would take minutes.
_MOST_PARTS = 10_000


def read_orientation(encoded: tf.Tensor) -> tf.Tensor:
    """Return the orientation of an image file, int32 scalar, 1 to 8.

    1 means that the stored pixels are upright. The others specify how to make them upright: 2
    mirrors left to right, 3 rotates by 180°, 4 mirrors top to bottom, 5 transposes (rows become
    columns), 6 rotates by 90° clockwise, 7 transposes and rotates by 180°, 8 rotates by 90°
    counterclockwise.

    Args:
        encoded: Scalar string, an image file of any format.
    """
    return tf.cond(
        _may_hold_exif(encoded),
        lambda: _search_parts(encoded),
        lambda: tf.constant(UPRIGHT),
    )


def _may_hold_exif(encoded: tf.Tensor) -> tf.Tensor:
    """Return whether a file can contain EXIF, without reading its parts."""
    extended = holds(encoded, 0, b"RIFF") & holds(encoded, 8, b"WEBPVP8X")
    flags = numbers(encoded, 20, 1)[0]
    return (
        (is_jpeg(encoded) & _holds_text(encoded, r"Exif\x00\x00"))
        | (is_png(encoded) & _holds_text(encoded, "eXIf"))
        | (extended & (flags & _EXIF_FLAG != 0))
    )


def swaps_sides(orientation: tf.Tensor) -> tf.Tensor:
    """Return whether the upright image has the height and width of the stored image swapped."""
    return orientation >= 5


def turned_size(size: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Convert height and width, int32 `[2]`, from stored to upright or from upright to stored."""
    return tf.where(swaps_sides(orientation), tf.reverse(size, [0]), size)


def turned_pixels(pixels: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Convert stored pixels `[height, width, c]` to upright pixels."""
    order = tf.where(swaps_sides(orientation), [1, 0, 2], [0, 1, 2])
    axes = tf.boolean_mask([0, 1], _mirrored(orientation))
    upright = tf.reverse(tf.transpose(pixels, order), axes)
    return tf.ensure_shape(upright, [None, None, pixels.shape[-1]])


def stored_window(window: tf.Tensor, size: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Convert a window of the upright image to a window of the stored image.

    Args:
        window: int32 `[4]` (y, x, height, width). It can be partly outside the image.
        size: int32 `[2]`, size of the upright image.
        orientation: int32 scalar, 1 to 8.
    """
    start, extent = tf.split(window, 2)
    start = tf.where(_mirrored(orientation), size - start - extent, start)
    return tf.concat([turned_size(start, orientation), turned_size(extent, orientation)], 0)


def upright_window(window: tf.Tensor, size: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Convert a window of the stored image to a window of the upright image.

    Arguments are as for `stored_window`."""
    start, extent = (turned_size(pair, orientation) for pair in tf.split(window, 2))
    start = tf.where(_mirrored(orientation), size - start - extent, start)
    return tf.concat([start, extent], 0)


def _mirrored(orientation: tf.Tensor) -> tf.Tensor:
    """Return whether rows and columns are in reverse order after swapping the sides, bool `[2]`."""
    rows, columns = (
        tf.reduce_any(orientation == values) for values in ([3, 4, 7, 8], [2, 3, 6, 7])
    )
    return tf.stack([rows, columns])


def _holds_text(encoded: tf.Tensor, pattern: str) -> tf.Tensor:
    # A replacement searches the first letters with vector instructions, unlike a match.
    without = tf.strings.regex_replace(encoded, pattern, "", replace_global=False)
    return tf.strings.length(without) < tf.strings.length(encoded)


def _is(values: tf.Tensor, expected: bytes) -> tf.Tensor:
    return tf.reduce_all(values == list(expected))


# One operation as in `decode.one_operation`, but traced once per process and for all formats,
# because tracing delays each pipeline.
@functools.partial(
    tf.function,
    input_signature=[tf.TensorSpec([], tf.string)],
    autograph=False,
    experimental_attributes={"_noinline": True},
)
def _search_parts(encoded: tf.Tensor) -> tf.Tensor:
    """Find the EXIF part of a JPEG, PNG, or WebP, and return its orientation."""
    end = length(encoded)
    jpeg, png = is_jpeg(encoded), is_png(encoded)
    start = tf.where(jpeg, 2, tf.where(png, 8, 12))

    def go_on(
        position: tf.Tensor, searching: tf.Tensor, content: tf.Tensor, size: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        ahead = numbers(encoded, position, _LOOKAHEAD)
        part_of = tf.where(
            jpeg,
            _jpeg_segment(encoded, position, ahead),
            tf.where(png, _png_chunk(position, ahead), _webp_chunk(position, ahead)),
        )
        found, no_more, content, size, following = tf.unstack(part_of)
        return following, (found == 0) & (no_more == 0), content, tf.where(found > 0, size, 0)

    _, _, content, size = tf.while_loop(
        lambda position, searching, *_: searching & (position < end),
        go_on,
        [tf.cast(start, tf.int64), tf.constant(True)] + 2 * [tf.constant(0, tf.int64)],
        maximum_iterations=_MOST_PARTS,
    )
    # In a JPEG, and by mistake in other formats, a prefix precedes the TIFF directory.
    prefix = part(encoded, content, tf.minimum(size, len(_PREFIX))) == _PREFIX
    skipped = tf.where(prefix, tf.constant(len(_PREFIX), tf.int64), 0)
    return _directory_orientation(part(encoded, content + skipped, size - skipped))


# These functions describe a part of a file as int64 [5]: whether it is EXIF, whether it is the last
# part, the start and the size of its content, and the start of the next part.


def _jpeg_segment(encoded: tf.Tensor, position: tf.Tensor, ahead: tf.Tensor) -> tf.Tensor:
    # Fill bytes and stray bytes can precede a marker.
    begins = (ahead[:-1] == 0xFF) & (ahead[1:] != 0xFF) & (ahead[1:] != 0)
    position += tf.argmax(tf.pad(tf.cast(begins, tf.uint8), [[0, 1]], constant_values=1))
    segment = numbers(encoded, position, 10)
    kind, size = segment[1], big_endian(segment[2:4])
    is_marker = (segment[0] == 0xFF) & (kind != 0xFF) & (kind != 0)
    bare = ~is_marker | (kind == _BARE) | ((kind >= _FIRST_BARE) & (kind <= _LAST_BARE))
    found = is_marker & (kind == _APP1) & _is(segment[4:], _PREFIX)
    no_more = is_marker & ((kind == _IMAGE_BEGINS) | (kind == _IMAGE_ENDS))
    step = tf.where(bare, tf.cast(is_marker, tf.int64) + 1, 2 + size)
    return _part(found, no_more, position + 10, size - 8, position + step)


def _png_chunk(position: tf.Tensor, ahead: tf.Tensor) -> tf.Tensor:
    size, kind = big_endian(ahead[:4]), ahead[4:8]
    return _part(_is(kind, b"eXIf"), _is(kind, b"IEND"), position + 8, size, position + size + 12)


def _webp_chunk(position: tf.Tensor, ahead: tf.Tensor) -> tf.Tensor:
    size = little_endian(ahead[4:8])
    found = _is(ahead[:4], b"EXIF")
    return _part(found, False, position + 8, size, position + 8 + size + size % 2)


def _part(*values: tf.Tensor | bool) -> tf.Tensor:
    return tf.stack([tf.cast(value, tf.int64) for value in values])


def _directory_orientation(tiff: tf.Tensor) -> tf.Tensor:
    """Return the orientation in the first directory of a TIFF file."""
    head = numbers(tiff, 0, 8)
    big = _is(head[:4], b"MM\0*")

    def number(values: tf.Tensor) -> tf.Tensor:
        return tf.where(big, big_endian(values), little_endian(values))

    start = number(head[4:])
    count = number(numbers(tiff, start, 2))
    # An entry has 12 bytes: tag, type, number of values, and the values, left-aligned, if they fit.
    entries = tf.io.decode_raw(part(tiff, start + 2, 12 * count), tf.uint8)
    whole = tf.size(entries) // 12 * 12
    entries = tf.cast(tf.reshape(entries[:whole], [-1, 12]), tf.int64)
    is_orientation = number(entries[:, :2]) == _TAG
    # The first entry with that tag, or an entry of zeros.
    entry = tf.pad(entries, [[0, 1], [0, 0]])[
        tf.argmax(tf.pad(tf.cast(is_orientation, tf.uint8), [[0, 1]], constant_values=1))
    ]
    kind, values, value = number(entry[2:4]), number(entry[4:8]), number(entry[8:10])
    known = (big | _is(head[:4], b"II*\0")) & (kind == _SHORT) & (values == 1)
    return tf.where(known & (value >= 1) & (value <= 8), tf.cast(value, tf.int32), UPRIGHT)
