"""Needs TensorFlow. The search for images that cannot be read, with reasons.

It checks a dataset before training. It also finds the file after a batch has failed, because the
error of a tf.data pipeline contains the reason but not the row.
"""

import concurrent.futures
import os
import re
from collections.abc import Sequence
from typing import cast

import numpy as np
import tensorflow as tf

from keras_dml._common.checks import check_bool, check_whole
from keras_dml._common.errors import ArgumentError, as_array
from keras_dml._common.progress import Bar
from pipelines import heic
from pipelines.checks import as_integers
from pipelines.image_files import read_image
from pipelines.images.decode import decode_image
from pipelines.images.file_checks import NO_IMAGE, readable, why_unsupported
from pipelines.images.limits import MOST_PIXELS
from pipelines.images.truncated import why_truncated
from pipelines.table import ImageTable, check_table

NO_SUCH_FILE = "no such file"
_ROWS_AT_A_TIME = 1024
_HEAD = 12  # bytes
_BAR_FROM = 1000  # rows; smaller checks are over before a bar is useful
_FIRST_BYTES = (b"\xff\xd8\xff", b"\x89PNG", b"BM", b"GIF8")
# Starts of the lines around the reason in an error of nested functions.
_TRACE_LINES = ("Graph execution error", "Detected at", "<stack traces", "  ", "\t")
# The node before a TensorFlow message, and the operation after it.
_WRAPPING = re.compile(r"\{\{[^}]*\}\}\s*|\s*\[Op:.*$")


def find_bad_images(
    table: ImageTable,
    rows: Sequence[int] | np.ndarray | None = None,
    decode: bool = True,
    max_pixels: int = MOST_PIXELS,
) -> list[tuple[int, str, str]]:
    """Decode all images of a table and return the images that fail.

    From 1,000 rows on, a progress bar is shown.

    Examples:
        >>> table = ImageTable.from_paths(["nowhere.jpg"], ["a"])
        >>> [(row, name) for row, name, reason in find_bad_images(table)]
        [(0, 'nowhere.jpg')]

    Args:
        table: `ImageTable`. A table of arrays has no bad images.
        rows: Rows to check, in this order. None: all rows.
        decode: If False, only check the first bytes of each file. This takes a hundredth of the
            time and finds missing and empty files and other formats, but not damaged images. Images
            in memory are then not checked.
        max_pixels: Most pixels that an image can have. Larger images are bad, and are not decoded.

    Returns:
        List of (row, name, reason): int, str, and one line of text, in the order of `rows`. The
        name is the path. For an image in memory, it is `"image ROW"`.

    Raises:
        ValueError, TypeError: `table` is not an `ImageTable`, `rows` are not integers, `decode` is
            not a bool, or `max_pixels` is below 1.
    """
    check_table("table", table)
    decode = check_bool("decode", decode)
    max_pixels = check_whole("max_pixels", max_pixels, least=1)
    rows = np.arange(len(table)) if rows is None else as_array("rows", rows)
    if rows.shape != (0,):
        rows = as_integers("rows", rows, None)
    encoded, paths = table.encoded, table.paths
    if (encoded is None and paths is None) or (encoded is not None and not decode):
        return []

    def why_bad(row: int) -> str | None:
        if encoded is not None:
            return _why_undecodable(max_pixels, encoded[row])
        return _why_unreadable(str(cast(np.ndarray, paths)[row]), decode, max_pixels)

    found = []
    hidden = len(rows) < _BAR_FROM
    # TensorFlow releases Python's lock while it decodes, so threads run in parallel.
    with (
        concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool,
        Bar("checking images", len(rows), leave=True, disable=hidden) as bar,
    ):
        for start in range(0, len(rows), _ROWS_AT_A_TIME):
            part = rows[start : start + _ROWS_AT_A_TIME].tolist()
            for row, reason in zip(part, pool.map(why_bad, part)):
                if reason is not None:
                    name = f"image {row}" if paths is None else str(paths[row])
                    found.append((row, name, reason))
                bar.update()
    return found


def _why_unreadable(path: str, decode: bool, max_pixels: int) -> str | None:
    """Return None for a good file, or the reason in one line."""
    try:
        reason = _why_not_an_image(read_image(path, max_pixels, first=_HEAD))
        if reason is None and decode:
            reason = _why_undecodable(max_pixels, read_image(path, max_pixels))
        return reason
    except FileNotFoundError:
        return NO_SUCH_FILE
    except OSError as error:
        return str(error.strerror)


def _why_not_an_image(head: bytes) -> str | None:
    """Return None if a file starts like an image, or the reason in one line."""
    if not head:
        return "the file is empty"
    unsupported = why_unsupported(head)
    webp = head[:4] == b"RIFF" and head[8:] == b"WEBP"
    if unsupported or webp or heic.is_heic(head) or head.startswith(_FIRST_BYTES):
        return unsupported
    return NO_IMAGE


def _why_undecodable(max_pixels: int, encoded: bytes) -> str | None:
    """Return None for the bytes of a good image, or the reason in one line."""
    other = why_unsupported(encoded)
    if other is not None:
        return other
    try:
        encoded = readable(encoded, max_pixels)
    except ArgumentError as error:
        return str(error)
    try:
        # Not in a graph, whose error is a long trace. A tensor, because functions in `decode` are
        # traced again for each Python value.
        decode_image(tf.constant(encoded), max_pixels)
    except tf.errors.OpError as error:
        return why_truncated(encoded) or _one_line(error.message)
    except UnicodeDecodeError:  # the message can contain bytes of the file
        return "a damaged image"
    return None


def _one_line(message: str) -> str:
    _, _, asserted = message.partition("Summarized data: b")
    if asserted:
        return asserted.strip("'\"")
    lines = [line for line in message.splitlines() if line and not line.startswith(_TRACE_LINES)]
    return _WRAPPING.sub("", lines[0]).strip() if lines else "a damaged image"
