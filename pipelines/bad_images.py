"""Needs TensorFlow. Find the files of a table that cannot be read as an image, and say why.

Serves the check before training and, after a batch has failed, to name the file that did it: the
error of a tf.data pipeline tells the reason but not the row.
"""

import concurrent.futures
import os
import re

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from pipelines import decode

_ROWS_AT_A_TIME = 1024
_BAR_FROM = 1000  # rows; below that the check is over before a bar would tell anything
# What TensorFlow wraps around a message: the calling node in front, the operation behind.
_WRAPPING = re.compile(r"\{\{[^}]*\}\}\s*|\s*\[Op:.*$")


def find_bad_images(table, rows=None, progress=None):
    """Decode the files of a table, whole, and list those that fail.

    Args:
        table: `ImageTable`; one of arrays has no bad images.
        rows: rows to look at, in that order; None: all.
        progress: whether to show a progress bar; None: from 1,000 rows on.

    Returns:
        List of (row, path, reason): int, str and one line of text, in the order of `rows`.
    """
    if table.arrays is not None:
        return []
    rows = np.arange(len(table)) if rows is None else np.asarray(rows)
    if progress is None:
        progress = len(rows) >= _BAR_FROM
    found = []
    # TensorFlow lets go of Python's lock while it decodes, so threads run side by side.
    with (
        concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool,
        tqdm(total=len(rows), desc="checking images", unit="image", disable=not progress) as bar,
    ):
        for start in range(0, len(rows), _ROWS_AT_A_TIME):
            part = rows[start : start + _ROWS_AT_A_TIME]
            paths = table.paths[part]
            for row, path, reason in zip(part, paths, pool.map(_why_unreadable, paths)):
                if reason is not None:
                    found.append((int(row), str(path), reason))
                bar.update()
    return found


@tf.function(input_signature=[tf.TensorSpec([], tf.string)])
def _decoded_size(path):
    return tf.shape(decode.decode_image(tf.io.read_file(path)))


def _why_unreadable(path):
    """None for a good image, else the reason in one line."""
    if not os.path.isfile(path):
        return "no such file"
    if os.path.getsize(path) == 0:
        return "the file is empty"
    try:
        _decoded_size(str(path))
    except tf.errors.OpError:
        # A graph's error buries its reason in a trace; without a graph it is the message itself.
        try:
            decode.decode_image(tf.io.read_file(str(path)))
        except tf.errors.OpError as error:
            return _one_line(error.message)
    return None


def _one_line(message):
    _, _, asserted = message.partition("Summarized data: b")
    return asserted.strip("'\"") if asserted else _WRAPPING.sub("", message.splitlines()[0])
