"""Caltech-UCSD Birds-200-2011 (Wah et al. 2011) in its official layout."""

import os

import numpy as np

from keras_dml._common.errors import ArgumentError
from pipelines.datasets.annotations import check_images, first, read_table
from pipelines.datasets.files import check_one_class, dataset_root, warn_of_other_counts
from pipelines.split import Unsplit
from pipelines.table import MAX_BOX_PIXELS, ImageTable

NUM_IMAGES = 11_788
NUM_CLASSES = 200
LAST_TRAIN_CLASS = 100
"""Class ids 1 to 100 are for training, 101 to 200 for the test."""

EXPECTED = (
    "Expected the unpacked archive CUB_200_2011 of Caltech-UCSD Birds-200-2011 (from the Caltech "
    "data repository, CaltechDATA), that is images.txt, image_class_labels.txt and images/."
)


def load(data_dir: str | os.PathLike[str] | None, crop_to_box: bool = False) -> Unsplit:
    """CUB-200-2011, split at its official boundary or after `train_classes` classes.

    No image is opened. Rows are in the order of `images.txt`, classes in the order of their ids. A
    folder with other numbers of images or classes than the full dataset only causes a warning.

    Args:
        data_dir: The folder `CUB_200_2011`, or a folder that contains it.
        crop_to_box: Whether to crop images to their bounding boxes (`bounding_boxes.txt`).

    Raises:
        ValueError: A folder or a file is missing, a line is invalid (the message names file and
            line), the files disagree, or listed images are missing.
    """
    needed = ["images.txt", "image_class_labels.txt", "images"]
    needed += ["bounding_boxes.txt"] if crop_to_box else []
    root = dataset_root(data_dir, "CUB_200_2011", needed, EXPECTED)
    images = read_table(os.path.join(root, "images.txt"), {"image_id": np.int64, "path": str})
    labels = _columns_of_images(root, "image_class_labels.txt", {"class_id": np.int64}, images)
    boxes = None
    if crop_to_box:
        sides = {"x": _pixels, "y": _pixels, "width": _extent, "height": _extent}
        boxes = _boxes(_columns_of_images(root, "bounding_boxes.txt", sides, images))
    paths = [path for (path,) in images.values()]
    check_images(os.path.join(root, "images"), paths, "images.txt")
    class_of_row = np.array(labels)[:, 0]
    check_one_class(os.path.join(root, "images.txt"), paths, class_of_row)
    class_ids = np.unique(class_of_row)
    table = ImageTable.from_paths(
        [os.path.join(root, "images", path) for path in paths],
        class_of_row,
        _class_names(root, class_ids),
        boxes,
    )
    warn_of_other_counts(root, table, "CUB-200-2011", NUM_IMAGES, NUM_CLASSES)
    return Unsplit(table, class_ids=class_ids, last_train_class=LAST_TRAIN_CLASS)


def _columns_of_images(root: str, name: str, columns: dict, images: dict) -> list[tuple]:
    """Return the columns of a file with one line for each image, in the order of `images`."""
    rows = read_table(os.path.join(root, name), {"image_id": np.int64, **columns})
    unpaired = sorted(images.keys() ^ rows.keys())
    if unpaired:
        raise ArgumentError(
            f"images.txt and {name} in {root} disagree: {len(unpaired)} image ids "
            f"are in only one of them. The first: {first(unpaired)}"
        )
    return [rows[image] for image in images]


def _boxes(sides: list[tuple]) -> np.ndarray:
    # Pixel numbers in the file start at 1.
    x, y, width, height = np.array(sides, np.int64).T
    return np.stack([y - 1, x - 1, height, width], axis=1)


def _pixels(word: str) -> int:
    number = round(float(word))
    if abs(number) > MAX_BOX_PIXELS:
        raise ValueError
    return number


def _extent(word: str) -> int:
    number = _pixels(word)
    if number < 1:
        raise ValueError
    return number


def _class_names(root: str, class_ids: np.ndarray) -> list[str] | None:
    """Return the names of the classes in classes.txt, or None if the file is missing."""
    path = os.path.join(root, "classes.txt")
    if not os.path.exists(path):
        return None
    names = read_table(path, {"class_id": np.int64, "name": str})
    nameless = [number for number in class_ids.tolist() if number not in names]
    if nameless:
        raise ArgumentError(
            f"{path} must name all classes, but got {len(nameless)} class ids without a name. "
            f"The first: {first(nameless)}"
        )
    return [names[number][0] for number in class_ids.tolist()]
