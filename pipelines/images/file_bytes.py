"""Needs TensorFlow. Parts of the bytes of a file. They never fail, even on damaged files."""

import tensorflow as tf


def length(encoded: tf.Tensor) -> tf.Tensor:
    """Return the number of bytes of a scalar string, int64."""
    return tf.cast(tf.strings.length(encoded), tf.int64)


def part(encoded: tf.Tensor, start: tf.Tensor | int, size: tf.Tensor | int) -> tf.Tensor:
    """Return `size` bytes from `start`, or fewer if the file ends before."""
    start = tf.minimum(tf.cast(start, tf.int64), length(encoded))
    return tf.strings.substr(encoded, start, tf.maximum(tf.cast(size, tf.int64), 0))


def numbers(encoded: tf.Tensor, start: tf.Tensor | int, size: int) -> tf.Tensor:
    """Return `size` bytes from `start` as int64 `[size]`. Bytes after the end of the file are 0."""
    found = tf.io.decode_raw(part(encoded, start, size), tf.uint8, fixed_length=size)
    return tf.cast(found, tf.int64)


def holds(encoded: tf.Tensor, start: int, expected: bytes) -> tf.Tensor:
    """Return whether a file has these bytes from `start`, scalar bool."""
    return part(encoded, start, len(expected)) == expected


def is_jpeg(encoded: tf.Tensor) -> tf.Tensor:
    """Return whether a file starts like a JPEG, scalar bool."""
    return holds(encoded, 0, b"\xff\xd8\xff")


def is_png(encoded: tf.Tensor) -> tf.Tensor:
    """Return whether a file starts like a PNG, scalar bool."""
    return holds(encoded, 0, b"\x89PNG\r\n\x1a\n")


def is_webp(encoded: tf.Tensor) -> tf.Tensor:
    """Return whether a file starts like a WebP, scalar bool."""
    return holds(encoded, 0, b"RIFF") & holds(encoded, 8, b"WEBP")


def big_endian(values: tf.Tensor) -> tf.Tensor:
    """Convert bytes along the last axis to a number, highest byte first."""
    places = values.shape[-1]
    return tf.reduce_sum(values * [256**place for place in reversed(range(places))], -1)


def little_endian(values: tf.Tensor) -> tf.Tensor:
    """Convert bytes along the last axis to a number, lowest byte first."""
    return big_endian(tf.reverse(values, [-1]))
