"""The Grocery Store Dataset (Klasson et al. 2019) in its official layout."""

import os
from collections.abc import Iterable

import numpy as np

from keras_dml._common.errors import ArgumentError
from pipelines.datasets.annotations import check_images, first, read_table, whole
from pipelines.datasets.files import dataset_root, warn_of_other_counts
from pipelines.split import Split, split_by_id
from pipelines.table import ImageTable

NUM_IMAGES = 5_421
NUM_CLASSES = 81
LAST_TRAIN_CLASS = 40
"""Class ids 0 to 40 train, 41 to 80 test: fruit and juice here, dairy and vegetables there."""

EXPECTED = (
    "Expected the Grocery Store Dataset (github.com/marcusklasson/GroceryStoreDataset), that is "
    "its folder dataset with classes.csv, train.txt, val.txt, test.txt and the images that they "
    "name."
)
# As GitHub packs it, as git clones it, and either's own folder.
_FOLDERS = ("GroceryStoreDataset-master/dataset", "GroceryStoreDataset/dataset", "dataset")
_CLASSES, _LISTS = "classes.csv", ("train.txt", "val.txt", "test.txt")
_CLASS_COLUMNS = {
    "Class Name (str)": str,
    "Class ID (int)": whole,
    "Coarse Class Name (str)": str,
    "Coarse Class ID (int)": whole,
    "Iconic Image Path (str)": str,
    "Product Description Path (str)": str,
}
_IMAGE_COLUMNS = {"path": str, "class_id": whole, "coarse_class_id": whole}


def load_split(
    data_dir: str | os.PathLike[str] | None,
    train_classes: int | None = None,
    test_classes: int | None = None,
    split: str = "first_classes",
    seed: int = 0,
) -> Split:
    """The Grocery Store Dataset: photos, and a catalog of one shop's picture a class."""
    table, catalog, class_ids = read_groceries(data_dir)
    return split_by_id(
        table, class_ids, LAST_TRAIN_CLASS, train_classes, test_classes, catalog, split, seed
    )


def read_groceries(
    data_dir: str | os.PathLike[str] | None,
) -> tuple[ImageTable, ImageTable, np.ndarray]:
    """Reads `classes.csv` and the three lists; opens no image.

    The lists' own division into training and test photos is within classes, and is not used: rows
    are all photos, in the order of `train.txt`, `val.txt` and `test.txt`, and classes those with
    photos, in the order of their ids. A folder with other counts than the full dataset's is read
    all the same, with a warning.

    Args:
        data_dir: the folder with `classes.csv`, or one that holds it, as downloaded or cloned.

    Returns:
        The photos; the catalog, one picture of each class on white; the dataset's own id of each
        class. Both tables have `coarse_ids`.

    Raises:
        ValueError: when the folder or a file in it is missing, a line of a file does not parse
            (the message names file and line), an id comes twice, the files disagree, or listed
            images are not there.
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
    return table, catalog, class_ids


def _classes(path: str) -> dict[int, tuple[str, int, str]]:
    """Class id -> its name, its coarse class's id, the path of its picture."""
    rows = read_table(path, _CLASS_COLUMNS, header=True, separator=",")
    classes: dict[int, tuple[str, int, str]] = {}
    for name, (class_id, _, coarse_id, picture, _) in rows.items():
        if class_id in classes:
            raise ArgumentError(
                f"{path} gives the class id {class_id} twice, to {classes[class_id][0]} and {name}"
            )
        # The paths begin with a slash, and mean the dataset's folder.
        classes[class_id] = name, coarse_id, picture.lstrip("/")
    return classes


def _check_classes(
    rows: Iterable[tuple[int, int]], classes: dict[int, tuple[str, int, str]], listed_in: str
) -> None:
    pairs = dict.fromkeys(rows)
    unknown = [class_id for class_id, _ in pairs if class_id not in classes]
    if unknown:
        raise ArgumentError(
            f"{_CLASSES} names no class for {len(unknown)} of the class ids of {listed_in}. "
            f"The first: {first(unknown)}"
        )
    other = [pair for pair in pairs if classes[pair[0]][1] != pair[1]]
    if other:
        class_id, coarse_id = other[0]
        raise ArgumentError(
            f"{_CLASSES} and {listed_in} disagree: class id {class_id} is of the coarse class "
            f"{classes[class_id][1]} in the one and {coarse_id} in the other"
        )
