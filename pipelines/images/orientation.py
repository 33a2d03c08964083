"""Needs TensorFlow. How a camera was held: the EXIF orientation of an image file.

TensorFlow's decoders give the pixels as they are stored. A camera that is turned stores them as its
sensor lies, and beside them one of eight orientations: tag 0x0112 of EXIF, which is a TIFF
directory within a JPEG's APP1 segment, a PNG's `eXIf` chunk or a WebP's `EXIF` chunk. (CIPA
DC-008, Exif 2.32, sections 4.5.4, 4.6.4 and 4.7.2.)

Nothing here fails: EXIF that is damaged, cut, of another type or outside of 1 to 8 is no
orientation, as if it were not there. What stands in XMP or in a PNG's text alone is not looked at;
browsers do not either.

Graph operations only. A JPEG without EXIF pays for one search through its bytes, and one whose EXIF
begins as cameras write it and says upright for a look at its first bytes (`looks_upright`).
"""

import functools

import tensorflow as tf

from pipelines.images.file_bytes import length, numbers, part

UPRIGHT = 1
_TAG, _SHORT = 0x0112, 3
_PREFIX = b"Exif\0\0"
_JPEG_BEGINS = b"\xff\xd8\xff"
_PNG_BEGINS = b"\x89PNG\r\n\x1a\n"
_APP1, _IMAGE_BEGINS, _IMAGE_ENDS = 0xE1, 0xDA, 0xD9
# Those without a length: TEM, RST0 to RST7 and SOI.
_BARE, _FIRST_BARE, _LAST_BARE = 0x01, 0xD0, 0xD8
_LOOKAHEAD = 64  # bytes
# What `looks_upright` looks at: JFIF and the eight tags that may stand before the orientation.
_HEAD = 192
# Tags come in ascending order: up to the orientation, 0x0112, all are less. Whatever follows, the
# first entry of that tag is this one, which says 1.
_UPRIGHT_HEAD = (
    r"(?s)\xff\xd8(?:\xff\xe0\x00\x10.{14})?\xff\xe1..Exif\x00\x00(?:"
    r"MM\x00\*\x00\x00\x00\x08..(?:\x00.{11}|\x01[\x00-\x11].{10})*"
    r"\x01\x12\x00\x03\x00\x00\x00\x01\x00\x01|"
    r"II\*\x00\x08\x00\x00\x00..(?:.\x00.{10}|[\x00-\x11]\x01.{10})*"
    r"\x12\x01\x03\x00\x01\x00\x00\x00\x01\x00"
    r").*"
)
_EXIF_FLAG = 0x08  # in the VP8X chunk of a WebP
# A PNG of 80 MB has as many; an attacker's millions of empty ones would take minutes.
_MOST_PARTS = 10_000


def is_jpeg(encoded: tf.Tensor) -> tf.Tensor:
    """Scalar bool, by the first bytes."""
    return tf.strings.substr(encoded, 0, len(_JPEG_BEGINS)) == _JPEG_BEGINS


def read_orientation(encoded: tf.Tensor) -> tf.Tensor:
    """The orientation of an image file, int32 scalar, 1 to 8.

    1: as it is stored. The others say what turns the stored pixels upright: 2 mirrors left to
    right, 3 turns by 180°, 4 mirrors top to bottom, 5 transposes (rows become columns), 6 turns
    by 90° clockwise, 7 transposes and turns by 180°, 8 turns by 90° counterclockwise.

    Args:
        encoded: scalar string: an image file of any kind.
    """
    return tf.cond(
        looks_upright(encoded) | ~_may_hold_exif(encoded),
        lambda: tf.constant(UPRIGHT),
        lambda: _by_parts(encoded),
    )


def looks_upright(encoded: tf.Tensor) -> tf.Tensor:
    """True, scalar bool, only of a JPEG of orientation 1, seen without going through its parts.

    False of everything else, and of some JPEGs of orientation 1 too: those whose EXIF is not the
    first segment, or the second behind JFIF, and those whose EXIF does not say its orientation
    where the TIFF standard's order of tags puts it.
    """
    # A regular expression is one operation, where reading the numbers takes fifty. Its bytes are
    # letters to it: those from 0x80 on would be no UTF-8.
    head = tf.strings.unicode_transcode(tf.strings.substr(encoded, 0, _HEAD), "ISO-8859-1", "UTF-8")
    no_exif = ~_holds_text(encoded, r"Exif\x00\x00")
    return is_jpeg(encoded) & (no_exif | tf.strings.regex_full_match(head, _UPRIGHT_HEAD))


def _may_hold_exif(encoded: tf.Tensor) -> tf.Tensor:
    """Whether a file that `looks_upright` does not know has a part where EXIF may be."""
    head = numbers(encoded, 0, 21)
    is_png = _is(head[:8], _PNG_BEGINS) & _holds_text(encoded, "eXIf")
    extended = _is(head[:4], b"RIFF") & _is(head[8:16], b"WEBPVP8X")
    return is_jpeg(encoded) | is_png | (extended & (head[20] & _EXIF_FLAG != 0))


def swaps_sides(orientation: tf.Tensor) -> tf.Tensor:
    """Whether an upright image is as wide as the stored one is high."""
    return orientation >= 5


def turned_size(size: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Height and width, int32 [2], upright from stored, or stored from upright."""
    return tf.where(swaps_sides(orientation), tf.reverse(size, [0]), size)


def turned_pixels(pixels: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Stored pixels [height, width, c] turned upright."""
    order = tf.where(swaps_sides(orientation), [1, 0, 2], [0, 1, 2])
    axes = tf.boolean_mask([0, 1], _mirrored(orientation))
    upright = tf.reverse(tf.transpose(pixels, order), axes)
    return tf.ensure_shape(upright, [None, None, pixels.shape[-1]])


def stored_window(window: tf.Tensor, size: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Where a window of the upright image lies in the stored one.

    Args:
        window: int32 [4] (y, x, height, width), perhaps not wholly inside.
        size: int32 [2], the upright image's.
        orientation: int32 scalar, 1 to 8.
    """
    start, extent = tf.split(window, 2)
    start = tf.where(_mirrored(orientation), size - start - extent, start)
    return tf.concat([turned_size(start, orientation), turned_size(extent, orientation)], 0)


def upright_window(window: tf.Tensor, size: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Where a window of the stored image lies in the upright one: `stored_window` undone."""
    start, extent = (turned_size(pair, orientation) for pair in tf.split(window, 2))
    start = tf.where(_mirrored(orientation), size - start - extent, start)
    return tf.concat([start, extent], 0)


def _mirrored(orientation: tf.Tensor) -> tf.Tensor:
    """Whether rows, and whether columns come in reverse, once the sides are swapped: bool [2]."""
    rows, columns = (
        tf.reduce_any(orientation == values) for values in ([3, 4, 7, 8], [2, 3, 6, 7])
    )
    return tf.stack([rows, columns])


def _holds_text(encoded: tf.Tensor, pattern: str) -> tf.Tensor:
    # Taking it out finds its few first letters by vector instructions; a match does not.
    without = tf.strings.regex_replace(encoded, pattern, "", replace_global=False)
    return tf.strings.length(without) < tf.strings.length(encoded)


def _is(values: tf.Tensor, expected: bytes) -> tf.Tensor:
    return tf.reduce_all(values == list(expected))


# As `decode.apart`, but traced once in a process, and one for all formats: tracing is what a
# pipeline waits for.
@functools.partial(
    tf.function,
    input_signature=[tf.TensorSpec([], tf.string)],
    autograph=False,
    experimental_attributes={"_noinline": True},
)
def _by_parts(encoded: tf.Tensor) -> tf.Tensor:
    """Go from part to part of a JPEG, PNG or WebP up to that of EXIF, and read it."""
    end = length(encoded)
    jpeg, png = is_jpeg(encoded), _is(numbers(encoded, 0, len(_PNG_BEGINS)), _PNG_BEGINS)
    start = tf.where(jpeg, 2, tf.where(png, len(_PNG_BEGINS), 12))

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
    # Before a JPEG's, and by mistake before others', stands what kind of content it is.
    prefix = part(encoded, content, tf.minimum(size, len(_PREFIX))) == _PREFIX
    skipped = tf.where(prefix, tf.constant(len(_PREFIX), tf.int64), 0)
    return _of_directory(part(encoded, content + skipped, size - skipped))


# Of a part: whether it is EXIF, whether it is the last one, where its content begins, how long that
# is, where the next part begins: int64 [5].


def _jpeg_segment(encoded: tf.Tensor, position: tf.Tensor, ahead: tf.Tensor) -> tf.Tensor:
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
    return _part(found, no_more, position + 10, size - 8, position + step)


def _png_chunk(position: tf.Tensor, ahead: tf.Tensor) -> tf.Tensor:
    size, kind = _number(ahead[:4]), ahead[4:8]
    return _part(_is(kind, b"eXIf"), _is(kind, b"IEND"), position + 8, size, position + size + 12)


def _webp_chunk(position: tf.Tensor, ahead: tf.Tensor) -> tf.Tensor:
    size = _number(ahead[7:3:-1])
    found = _is(ahead[:4], b"EXIF")
    return _part(found, False, position + 8, size, position + 8 + size + size % 2)


def _part(*values: tf.Tensor | bool) -> tf.Tensor:
    return tf.stack([tf.cast(value, tf.int64) for value in values])


def _of_directory(tiff: tf.Tensor) -> tf.Tensor:
    """The orientation that the first directory of a TIFF file holds."""
    head = numbers(tiff, 0, 8)
    big = _is(head[:4], b"MM\0*")

    def number(values: tf.Tensor) -> tf.Tensor:
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


def _number(values: tf.Tensor) -> tf.Tensor:
    """int64 of bytes along the last axis, the highest first."""
    places = values.shape[-1]
    return tf.reduce_sum(values * [256**place for place in reversed(range(places))], -1)
