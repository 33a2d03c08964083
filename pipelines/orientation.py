"""Needs TensorFlow. How a camera was held: the EXIF orientation of an image file.

TensorFlow's decoders give the pixels as they are stored. A camera that is turned stores them as its
sensor lies, and beside them one of eight orientations: tag 0x0112 of EXIF, which is a TIFF
directory within a JPEG's APP1 segment, a PNG's `eXIf` chunk or a WebP's `EXIF` chunk. (CIPA
DC-008, Exif 2.32, sections 4.5.4, 4.6.4 and 4.7.2.)

Nothing here fails: EXIF that is damaged, cut, of another type or outside of 1 to 8 is no
orientation, as if it were not there. What stands in XMP or in a PNG's text alone is not looked at;
browsers do not either.

Graph operations only. A file without EXIF pays for one search through its bytes.
"""

import tensorflow as tf

from pipelines.file_bytes import length, numbers, part

UPRIGHT = 1
_TAG, _SHORT = 0x0112, 3
_PREFIX = b"Exif\0\0"
_JPEG_BEGINS = b"\xff\xd8\xff"
_PNG_BEGINS = b"\x89PNG\r\n\x1a\n"
_APP1, _IMAGE_BEGINS, _IMAGE_ENDS = 0xE1, 0xDA, 0xD9
# Those without a length: TEM, RST0 to RST7 and SOI.
_BARE, _FIRST_BARE, _LAST_BARE = 0x01, 0xD0, 0xD8
_LOOKAHEAD = 64  # bytes
_EXIF_FLAG = 0x08  # in the VP8X chunk of a WebP
# A PNG of 80 MB has as many; an attacker's millions of empty ones would take minutes.
_MOST_PARTS = 10_000


def is_jpeg(encoded):
    """Scalar bool, by the first bytes."""
    return tf.strings.substr(encoded, 0, len(_JPEG_BEGINS)) == _JPEG_BEGINS


def read_orientation(encoded):
    """The orientation of an image file, int32 scalar, 1 to 8.

    1: as it is stored. The others say what turns the stored pixels upright: 2 mirrors left to
    right, 3 turns by 180°, 4 mirrors top to bottom, 5 transposes (rows become columns), 6 turns
    by 90° clockwise, 7 transposes and turns by 180°, 8 turns by 90° counterclockwise.

    Args:
        encoded: scalar string: an image file of any kind.
    """
    return tf.cond(
        is_jpeg(encoded), lambda: jpeg_orientation(encoded), lambda: other_orientation(encoded)
    )


def jpeg_orientation(encoded):
    """`read_orientation` of a JPEG."""
    # The search alone is far cheaper than going from segment to segment.
    return tf.cond(
        _holds_text(encoded, r"Exif\x00\x00"),
        lambda: _in_jpeg(encoded),
        lambda: tf.constant(UPRIGHT),
    )


def other_orientation(encoded):
    """`read_orientation` of everything but a JPEG; BMP and GIF have none."""
    head = numbers(encoded, 0, 21)
    is_png = _is(head[:8], _PNG_BEGINS) & _holds_text(encoded, "eXIf")
    extended = _is(head[:4], b"RIFF") & _is(head[8:16], b"WEBPVP8X")
    is_webp = extended & (head[20] & _EXIF_FLAG != 0)
    upright = tf.constant(UPRIGHT)
    return tf.cond(
        is_png,
        lambda: _in_png(encoded),
        lambda: tf.cond(is_webp, lambda: _in_webp(encoded), lambda: upright),
    )


def swaps_sides(orientation):
    """Whether an upright image is as wide as the stored one is high."""
    return orientation >= 5


def turned_size(size, orientation):
    """Height and width, int32 [2], upright from stored, or stored from upright."""
    return tf.where(swaps_sides(orientation), tf.reverse(size, [0]), size)


def turned_pixels(pixels, orientation):
    """Stored pixels [height, width, c] turned upright."""
    order = tf.where(swaps_sides(orientation), [1, 0, 2], [0, 1, 2])
    axes = tf.boolean_mask([0, 1], _mirrored(orientation))
    upright = tf.reverse(tf.transpose(pixels, order), axes)
    return tf.ensure_shape(upright, [None, None, pixels.shape[-1]])


def stored_window(window, size, orientation):
    """Where a window of the upright image lies in the stored one.

    Args:
        window: int32 [4] (y, x, height, width), perhaps not wholly inside.
        size: int32 [2], the upright image's.
        orientation: int32 scalar, 1 to 8.
    """
    start, extent = tf.split(window, 2)
    start = tf.where(_mirrored(orientation), size - start - extent, start)
    return tf.concat([turned_size(start, orientation), turned_size(extent, orientation)], 0)


def upright_window(window, size, orientation):
    """Where a window of the stored image lies in the upright one: `stored_window` undone."""
    start, extent = (turned_size(pair, orientation) for pair in tf.split(window, 2))
    start = tf.where(_mirrored(orientation), size - start - extent, start)
    return tf.concat([start, extent], 0)


def _mirrored(orientation):
    """Whether rows, and whether columns come in reverse, once the sides are swapped: bool [2]."""
    rows, columns = (
        tf.reduce_any(orientation == values) for values in ([3, 4, 7, 8], [2, 3, 6, 7])
    )
    return tf.stack([rows, columns])


def _holds_text(encoded, pattern):
    # Taking it out finds its few first letters by vector instructions; a match does not.
    without = tf.strings.regex_replace(encoded, pattern, "", replace_global=False)
    return tf.strings.length(without) < tf.strings.length(encoded)


def _is(values, expected):
    return tf.reduce_all(values == list(expected))


def _apart(function):
    """As `decode.apart`, but traced once in a process."""
    return tf.function(
        function,
        input_signature=[tf.TensorSpec([], tf.string)],
        autograph=False,
        experimental_attributes={"_noinline": True},
    )


@_apart
def _in_jpeg(encoded):
    def look(position):
        ahead = numbers(encoded, position, _LOOKAHEAD)
        # Fill bytes, and what does not belong there, may stand before a marker.
        begins = (ahead[:-1] == 0xFF) & (ahead[1:] != 0xFF) & (ahead[1:] != 0)
        position += tf.argmax(tf.pad(tf.cast(begins, tf.uint8), [[0, 1]], constant_values=1))
        segment = numbers(encoded, position, 10)
        kind, size = segment[1], _number(segment[2:4])
        is_marker = (segment[0] == 0xFF) & (kind != 0xFF) & (kind != 0)
        bare = ~is_marker | (kind == _BARE) | ((kind >= _FIRST_BARE) & (kind <= _LAST_BARE))
        found = is_marker & (kind == _APP1) & _is(segment[4:], _PREFIX)
        no_more = is_marker & ((kind == _IMAGE_BEGINS) | (kind == _IMAGE_ENDS))
        step = tf.where(bare, tf.cast(is_marker, tf.int64) + 1, 2 + size)
        return found, no_more, position + 10, size - 8, position + step

    return _orientation_of_part(encoded, 2, look)


@_apart
def _in_png(encoded):
    def look(position):
        chunk = numbers(encoded, position, 8)
        size, found, no_more = _number(chunk[:4]), _is(chunk[4:], b"eXIf"), _is(chunk[4:], b"IEND")
        return found, no_more, position + 8, size, position + size + 12

    return _orientation_of_part(encoded, len(_PNG_BEGINS), look)


@_apart
def _in_webp(encoded):
    def look(position):
        chunk = numbers(encoded, position, 8)
        size, found = _number(chunk[:3:-1]), _is(chunk[:4], b"EXIF")
        return found, tf.constant(False), position + 8, size, position + 8 + size + size % 2

    return _orientation_of_part(encoded, 12, look)


def _orientation_of_part(encoded, start, look):
    """Go from part to part of a file up to that of EXIF, and read it.

    Args:
        encoded: scalar string.
        start: where the first part begins.
        look: function from a part's position, int64, to (whether it is EXIF, whether it is the
            last one, where its content begins, how long that is, where the next part begins).
    """
    end = length(encoded)

    def go_on(position, searching, content, size):
        found, no_more, content, size, following = look(position)
        return following, ~found & ~no_more, content, tf.where(found, size, 0)

    _, _, content, size = tf.while_loop(
        lambda position, searching, *_: searching & (position < end),
        go_on,
        [tf.constant(start, tf.int64), tf.constant(True)] + 2 * [tf.constant(0, tf.int64)],
        maximum_iterations=_MOST_PARTS,
    )
    # Before a JPEG's, and by mistake before others', stands what kind of content it is.
    prefix = part(encoded, content, tf.minimum(size, len(_PREFIX))) == _PREFIX
    skipped = tf.where(prefix, tf.constant(len(_PREFIX), tf.int64), 0)
    return _of_directory(part(encoded, content + skipped, size - skipped))


def _of_directory(tiff):
    """The orientation that the first directory of a TIFF file holds."""
    head = numbers(tiff, 0, 8)
    big = _is(head[:4], b"MM\0*")

    def number(values):
        return tf.where(big, _number(values), _number(tf.reverse(values, [-1])))

    start = number(head[4:])
    count = number(numbers(tiff, start, 2))
    # Of 12 bytes each: tag, type, how many values, and the values if they fit, from the left.
    entries = tf.io.decode_raw(part(tiff, start + 2, 12 * count), tf.uint8)
    whole = tf.size(entries) // 12 * 12
    entries = tf.cast(tf.reshape(entries[:whole], [-1, 12]), tf.int64)
    is_orientation = number(entries[:, :2]) == _TAG
    # The first of that tag, or one of zeros.
    entry = tf.pad(entries, [[0, 1], [0, 0]])[
        tf.argmax(tf.pad(tf.cast(is_orientation, tf.uint8), [[0, 1]], constant_values=1))
    ]
    kind, values, value = number(entry[2:4]), number(entry[4:8]), number(entry[8:10])
    known = (big | _is(head[:4], b"II*\0")) & (kind == _SHORT) & (values == 1)
    return tf.where(known & (value >= 1) & (value <= 8), tf.cast(value, tf.int32), UPRIGHT)


def _number(values):
    """int64 of bytes along the last axis, the highest first."""
    places = values.shape[-1]
    return tf.reduce_sum(values * [256**place for place in reversed(range(places))], -1)
