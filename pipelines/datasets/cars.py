"""Cars-196 (Krause et al. 2013) in either of its two layouts."""

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np

from keras_dml._common.errors import ArgumentError
from keras_dml._common.extras import needing
from pipelines.datasets import read_mat
from pipelines.datasets.annotations import check_images, first
from pipelines.datasets.files import (
    check_one_class,
    checked_data_dir,
    folder_with,
    missing_file_error,
    warn_of_other_counts,
)
from pipelines.split import Unsplit
from pipelines.table import MAX_BOX_PIXELS, ImageTable

NUM_IMAGES = 16_185
NUM_CLASSES = 196
LAST_TRAIN_CLASS = 98
"""Class ids 1 to 98 are for training, 99 to 196 for the test, in both of its image sets."""

EXPECTED = (
    "Expected Cars-196 in one of its two layouts: cars_annos.mat and car_ims/; or devkit/, "
    "cars_train/, cars_test/ and cars_test_annos_withlabels.mat."
)

_LIST = "cars_annos.mat"
_TRAIN_LIST, _TEST_LIST = "cars_train_annos.mat", "cars_test_annos_withlabels.mat"
_BOX = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")


def load(data_dir: str | os.PathLike[str] | None, crop_to_box: bool = False) -> Unsplit:
    """Cars-196, split at its official boundary or after `train_classes` classes.

    No image is opened. Rows are in the order of the annotations (in the second layout, first the
    training set, then the test set). Classes are in the order of their ids. A folder with other
    numbers of images or classes than the full dataset only causes a warning.

    Args:
        data_dir: Folder with the files in `EXPECTED`, or a folder that contains it as
            `stanford_cars`.
        crop_to_box: Whether to crop images to their bounding boxes.

    Raises:
        ValueError: A folder or a file is missing, an annotation file cannot be read or has an
            invalid entry (the message names both), the files disagree, or listed images are
            missing.
    """
    given = checked_data_dir(data_dir, EXPECTED)
    root = folder_with([_LIST, "devkit", _TRAIN_LIST], given, ["stanford_cars"])
    if os.path.exists(os.path.join(root, _LIST)):
        names = os.path.join(root, _LIST)
        lists = [(names, "relative_im_path", root)]
    else:
        names = _annotations(root, "cars_meta.mat")
        lists = [
            (_annotations(root, _TRAIN_LIST), "fname", _images(root, "cars_train")),
            (_annotations(root, _TEST_LIST), "fname", _images(root, "cars_test")),
        ]
    parts = [_read_list(*one) for one in lists]
    if crop_to_box:
        for (file, _, _), (_, _, boxes) in zip(lists, parts):
            _check_boxes(file, boxes)
    paths = [path for part, _, _ in parts for path in part]
    classes, boxes = (np.concatenate([part[column] for part in parts]) for column in (1, 2))
    check_one_class(" and ".join(file for file, _, _ in lists), paths, classes)
    class_ids = np.unique(classes)
    table = ImageTable.from_paths(
        paths, classes, _class_names(names, class_ids), boxes if crop_to_box else None
    )
    warn_of_other_counts(root, table, "Cars-196", NUM_IMAGES, NUM_CLASSES)
    return Unsplit(table, class_ids=class_ids, last_train_class=LAST_TRAIN_CLASS)


def _annotations(root: str, name: str) -> str:
    """Return the path of an annotation file. In some copies, all are in devkit/, in others none."""
    for path in (os.path.join(root, "devkit", name), os.path.join(root, name)):
        if os.path.exists(path):
            return path
    raise missing_file_error(root, name, EXPECTED)


def _images(root: str, name: str) -> str:
    """Return the folder of images. Some copies have it inside a folder of the same name."""
    folder = os.path.join(root, name)
    if not os.path.isdir(folder):
        raise missing_file_error(root, name, EXPECTED)
    inner = os.path.join(folder, name)
    return inner if os.path.isdir(inner) else folder


def _read_list(file: str, path_field: str, folder: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return the paths, class ids int64 [n], and boxes int64 [n, 4] of an annotation file."""
    fields, entries = _read_mat(file, "annotations")
    wanted = (path_field, "class", *_BOX)
    if not set(wanted) <= set(fields or ()):
        raise ArgumentError(
            f"{file}: annotations must have the fields {', '.join(wanted)}, but got "
            f"{', '.join(fields or ()) or 'none'}."
        )
    if not entries:
        raise ArgumentError(f"{file} must list images, but got none.")
    places = [fields.index(name) for name in wanted]
    rows = [[entry[place] for place in places] for entry in entries]
    for number, (path, *row) in enumerate(rows, start=1):
        if not isinstance(path, str) or not all(map(_is_number, row)):
            raise ArgumentError(
                f"{file}, annotation {number} must be a file name, and whole numbers for the class "
                f"and the box, but got {first([repr(path), row])}."
            )
    paths = [row[0] for row in rows]
    numbers = np.array([row[1:] for row in rows], np.int64)
    check_images(folder, paths, os.path.basename(file))
    # Pixel numbers start at 1. The box includes its last row and column.
    classes, left, top, right, bottom = numbers.T
    boxes = np.stack([top - 1, left - 1, bottom - top + 1, right - left + 1], axis=1)
    return [os.path.join(folder, path) for path in paths], classes, boxes


def _is_number(value: object) -> bool:
    """Return whether the value is a valid class or box side: an integer that fits in the arrays."""
    return isinstance(value, int) and abs(value) < MAX_BOX_PIXELS // 2


def _check_boxes(file: str, boxes: np.ndarray) -> None:
    empty = np.flatnonzero(boxes[:, 2:].min(axis=1) < 1)
    if len(empty):
        raise ArgumentError(
            f"{file}, annotation {empty[0] + 1} must have a box whose last row and column are not "
            f"before its first, but got y, x, height, width = {boxes[empty[0]].tolist()}."
        )


def _class_names(file: str, class_ids: np.ndarray) -> list[str]:
    names = _read_mat(file, "class_names")[1]
    wrong = [number for number, name in enumerate(names, 1) if not isinstance(name, str)]
    if wrong:
        raise ArgumentError(
            f"{file}: class_names must be text, but got {len(wrong)} that are not. "
            f"The first: {first(wrong)}"
        )
    nameless = [number for number in class_ids.tolist() if not 1 <= number <= len(names)]
    if nameless:
        raise ArgumentError(
            f"{file} must name all classes, but got {len(names)} names, and {len(nameless)} class "
            f"ids without a name. The first: {first(nameless)}"
        )
    return [names[number - 1] for number in class_ids.tolist()]


def _read_mat(file: str, variable: str) -> tuple[list[str], list[Any]]:
    """Return the fields (empty if it is not a structure) and entries of a variable."""
    with needing("run", "the dataset cars"):
        import scipy  # noqa: F401 because the error of the subprocess does not name the extra

    content = json.loads(_printed(file, variable))
    if not content:
        raise ArgumentError(f"{file} must contain the variable {variable}, but got another file.")
    return content["fields"] or [], content["rows"]


def _printed(file: str, variable: str) -> str:
    command = [sys.executable, "-P", read_mat.__file__, os.path.abspath(file), variable]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        why = lines[-1] if lines else "the reader crashed"
        if done.returncode < 0:
            why = f"the reader crashed with signal {-done.returncode}"
        raise ArgumentError(f"{file} cannot be read as a MATLAB file: {why}")
    return done.stdout.decode()
