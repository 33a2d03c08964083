"""Stanford Online Products (Song et al. 2016) in its official layout."""

import dataclasses
import os
from collections.abc import Iterable

import numpy as np

from keras_dml._common.errors import ArgumentError
from pipelines.datasets.annotations import check_images, first, read_table
from pipelines.datasets.files import check_one_class, dataset_root, warn_of_other_counts
from pipelines.split import Split
from pipelines.table import ImageTable

NUM_IMAGES = {"train": 59_551, "test": 60_502}
NUM_CLASSES = {"train": 11_318, "test": 11_316}

EXPECTED = (
    "Expected the unpacked archive Stanford_Online_Products: Ebay_train.txt, Ebay_test.txt, and a "
    "folder of images for each kind of product."
)
_COLUMNS = {"image_id": np.int64, "class_id": np.int64, "super_class_id": np.int64, "path": str}


def load(data_dir: str | os.PathLike[str] | None) -> Split:
    """Stanford Online Products, in its official split.

    Rows are in the order of the two lists, classes in the order of their ids. No image is opened. A
    list with other numbers of images or classes than the full dataset only causes a warning.

    Args:
        data_dir: The folder `Stanford_Online_Products`, or a folder that contains it.

    Raises:
        ValueError: The folder or a list is missing, a line is invalid (the message names file and
            line), a class is in both lists or has several super-classes, or listed images are
            missing.
    """
    needed = ["Ebay_train.txt", "Ebay_test.txt"]
    root = dataset_root(data_dir, "Stanford_Online_Products", needed, EXPECTED)
    rows = {
        side: read_table(os.path.join(root, f"Ebay_{side}.txt"), _COLUMNS, header=True).values()
        for side in ("train", "test")
    }
    for side in rows:
        _check_super_classes(os.path.join(root, f"Ebay_{side}.txt"), rows[side])
    train, test = ({class_id for class_id, _, _ in rows[side]} for side in rows)
    if train & test:
        both = sorted(train & test)
        raise ArgumentError(
            f"Ebay_train.txt and Ebay_test.txt in {root} must not share classes, but got "
            f"{len(both)} class ids in both. The first: {first(both)}"
        )
    return Split(_table(root, "train", rows["train"]), _table(root, "test", rows["test"]))


def _check_super_classes(where: str, rows: Iterable[tuple]) -> None:
    of_class: dict[int, set[int]] = {}
    for class_id, super_class_id, _ in rows:
        of_class.setdefault(class_id, set()).add(super_class_id)
    several = sorted(class_id for class_id in of_class if len(of_class[class_id]) > 1)
    if several:
        raise ArgumentError(
            f"{where} must have one super_class_id for each class_id, but got several for "
            f"{len(several)} class ids. The first: {first(several)}"
        )


def _table(root: str, side: str, rows: Iterable[tuple]) -> ImageTable:
    name = f"Ebay_{side}.txt"
    paths = [path for _, _, path in rows]
    check_images(root, paths, name)
    check_one_class(os.path.join(root, name), paths, [class_id for class_id, _, _ in rows])
    table = ImageTable.from_paths(
        [os.path.join(root, path) for path in paths], [class_id for class_id, _, _ in rows]
    )
    coarse = {class_id: coarse_id for class_id, coarse_id, _ in rows}
    coarse_ids = np.array([coarse[class_id] for class_id in sorted(coarse)])
    full = f"Stanford Online Products' {side} list"
    where = os.path.join(root, name)
    warn_of_other_counts(where, table, full, NUM_IMAGES[side], NUM_CLASSES[side])
    return dataclasses.replace(table, coarse_ids=coarse_ids)
