"""Needs TensorFlow. Parts of a file's bytes; nothing here fails, however damaged the file is."""

import tensorflow as tf


def length(encoded: tf.Tensor) -> tf.Tensor:
    """How many bytes a scalar string has, int64."""
    return tf.cast(tf.strings.length(encoded), tf.int64)


def part(encoded: tf.Tensor, start: tf.Tensor | int, size: tf.Tensor | int) -> tf.Tensor:
    """At most `size` bytes from `start` on: what lies within the file."""
    start = tf.minimum(tf.cast(start, tf.int64), length(encoded))
    return tf.strings.substr(encoded, start, tf.maximum(tf.cast(size, tf.int64), 0))


def numbers(encoded: tf.Tensor, start: tf.Tensor | int, size: int) -> tf.Tensor:
    """int64 [size]: the bytes from `start` on; 0 behind the end of the file."""
    found = tf.io.decode_raw(part(encoded, start, size), tf.uint8, fixed_length=size)
    return tf.cast(found, tf.int64)
