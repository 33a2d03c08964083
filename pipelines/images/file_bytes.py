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
