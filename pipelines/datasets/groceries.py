"""The Grocery Store Dataset (Klasson et al. 2019) in its official layout."""

import os
from collections.abc import Iterable

import numpy as np

from keras_dml._common.errors import ArgumentError
from pipelines.datasets.annotations import check_images, first, read_table
from pipelines.datasets.files import check_one_class, dataset_root, warn_of_other_counts
from pipelines.split import Unsplit
from pipelines.table import ImageTable

NUM_IMAGES = 5_421
NUM_CLASSES = 81
LAST_TRAIN_CLASS = 40
"""Class ids 0 to 40 (fruit, juice) are for training, 41 to 80 (dairy, vegetables) for the test."""

EXPECTED = (
    "Expected the Grocery Store Dataset (github.com/marcusklasson/GroceryStoreDataset): its folder "
    "dataset with classes.csv, train.txt, val.txt, test.txt, and the listed images."
)
# From GitHub's archive, from a git clone, and the folder inside.
_FOLDERS = ("GroceryStoreDataset-master/dataset", "GroceryStoreDataset/dataset", "dataset")
_CLASSES, _LISTS = "classes.csv", ("train.txt", "val.txt", "test.txt")
_CLASS_COLUMNS = {
    "Class Name (str)": str,
    "Class ID (int)": np.int64,
    "Coarse Class Name (str)": str,
    "Coarse Class ID (int)": np.int64,
    "Iconic Image Path (str)": str,
    "Product Description Path (str)": str,
}
_IMAGE_COLUMNS = {"path": str, "class_id": np.int64, "coarse_class_id": np.int64}


def load(data_dir: str | os.PathLike[str] | None) -> Unsplit:
    """The Grocery Store Dataset: photos, and a catalog with a shop's picture of each class.

    No image is opened. The lists divide the photos of each class into training and test. This
    division is not used. Rows are all photos, in the order of `train.txt`, `val.txt`, and
    `test.txt`. Classes are those with photos, in the order of their ids. A folder with other
    numbers of images or classes than the full dataset only causes a warning.

    Args:
        data_dir: Folder with `classes.csv`, or the downloaded or cloned folder that contains it.

    Returns:
        The photos, and the catalog with one picture of each class on white. Both tables have
        `coarse_ids`.

    Raises:
        ValueError: A folder or a file is missing, a line is invalid (the message names file and
            line), an id appears twice, the files disagree, or listed images are missing.
    """
    root = dataset_root(data_dir, _FOLDERS, [_CLASSES, *_LISTS], EXPECTED)
    classes = _classes(os.path.join(root, _CLASSES))
    paths: list[str] = []
    ids: list[int] = []
    for name in _LISTS:
        rows = read_table(os.path.join(root, name), _IMAGE_COLUMNS, separator=",")
        check_images(root, rows, name)
        _check_classes(rows.values(), classes, f"{name} in {root}")
        paths += rows
        ids += [class_id for class_id, _ in rows.values()]
    check_one_class(f"The lists in {root}", paths, ids)
    class_ids, labels = np.unique(ids, return_inverse=True)
    names, coarse_ids, pictures = zip(*(classes[number] for number in class_ids.tolist()))
    check_images(root, pictures, _CLASSES)
    table, catalog = (
        ImageTable(
            numbers,
            names,
            paths=np.array([os.path.join(root, path) for path in files]),
            coarse_ids=np.array(coarse_ids),
        )
        for numbers, files in ((labels, paths), (np.arange(len(class_ids)), pictures))
    )
    warn_of_other_counts(root, table, "Grocery Store Dataset", NUM_IMAGES, NUM_CLASSES)
    return Unsplit(table, catalog, class_ids, LAST_TRAIN_CLASS)


def _classes(path: str) -> dict[int, tuple[str, int, str]]:
    """Return class id -> (name, id of the coarse class, path of the picture)."""
    rows = read_table(path, _CLASS_COLUMNS, header=True, separator=",")
    classes: dict[int, tuple[str, int, str]] = {}
    for name, (class_id, _, coarse_id, picture, _) in rows.items():
        if class_id in classes:
            raise ArgumentError(
                f"{path} must have different class ids, but got {class_id} for "
                f"{classes[class_id][0]} and {name}."
            )
        # The paths start with a slash, but are relative to the dataset's folder.
        classes[class_id] = name, coarse_id, picture.lstrip("/")
    return classes


def _check_classes(
    rows: Iterable[tuple[int, int]], classes: dict[int, tuple[str, int, str]], listed_in: str
) -> None:
    pairs = dict.fromkeys(rows)
    unknown = [class_id for class_id, _ in pairs if class_id not in classes]
    if unknown:
        raise ArgumentError(
            f"{_CLASSES} must name all classes in {listed_in}, but got {len(unknown)} class ids "
            f"without a name. The first: {first(unknown)}"
        )
    other = [pair for pair in pairs if classes[pair[0]][1] != pair[1]]
    if other:
        class_id, coarse_id = other[0]
        raise ArgumentError(
            f"{_CLASSES} and {listed_in} disagree: class id {class_id} has the coarse class "
            f"{classes[class_id][1]} in the former and {coarse_id} in the latter"
        )
