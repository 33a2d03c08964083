"""In-Shop Clothes Retrieval (Liu et al. 2016, DeepFashion) in its official layout."""

import os

import numpy as np

from keras_dml._common.errors import ArgumentError
from pipelines.datasets.annotations import check_images, first, read_table
from pipelines.datasets.files import (
    check_one_class,
    checked_data_dir,
    folder_with,
    missing_file_error,
    warn_of_other_counts,
)
from pipelines.split import Split
from pipelines.table import ImageTable

NUM_IMAGES = {"train": 25_882, "query": 14_218, "gallery": 12_612}
NUM_CLASSES = {"train": 3_997, "query": 3_985, "gallery": 3_985}

EXPECTED = (
    "Expected the In-Shop Clothes Retrieval benchmark of DeepFashion: list_eval_partition.txt (or "
    "Eval/list_eval_partition.txt), and the unpacked img.zip as img/ (or Img/img/). To get it, ask "
    "its authors at mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html."
)
_LIST = "list_eval_partition.txt"
_FOLDERS = ("In-shop Clothes Retrieval Benchmark", "inshop")


def load(data_dir: str | os.PathLike[str] | None) -> Split:
    """In-Shop, with a gallery, in its official split.

    The list specifies the training images, the queries, and the gallery. No image is opened. Rows
    are in the order of the list. Classes (items) are in the order of their names. Queries and
    gallery have the same classes. Another number of images than in the full dataset only causes a
    warning.

    Args:
        data_dir: Folder with the list and `img`, unpacked or as downloaded (`Eval`, `Img`), or a
            folder that contains it as `In-shop Clothes Retrieval Benchmark` or `inshop`.

    Returns:
        `Split` with the queries as `test`, and with a `gallery`.

    Raises:
        ValueError: The folder, the list, or `img` is missing, a line is invalid (the message names
            file and line), the number of lines is not the announced one, one of the three sets is
            empty, an item is in training and test, or listed images are missing.
    """
    given = checked_data_dir(data_dir, EXPECTED)
    root = folder_with([_LIST, "Eval"], given, _FOLDERS)
    path = _either(root, _LIST, os.path.join("Eval", _LIST))
    images = os.path.dirname(_either(root, "img", os.path.join("Img", "img")))
    columns = {"image_name": str, "item_id": str, "evaluation_status": _status}
    rows = read_table(path, columns, counted=True, header=True)
    check_images(images, rows, _LIST)
    items, sides = (np.array(column) for column in zip(*rows.values()))
    check_one_class(path, rows, items)
    for side in NUM_IMAGES:
        if side not in sides:
            raise ArgumentError(
                f"{path} must list images with evaluation_status {side}, but got none."
            )
    every = ImageTable.from_paths([os.path.join(images, name) for name in rows], items)
    trained = np.unique(every.labels[sides == "train"])
    tested = np.unique(every.labels[sides != "train"])
    both = [every.class_names[number] for number in np.intersect1d(trained, tested)]
    if both:
        raise ArgumentError(
            f"{path} must not have items in both train and query or gallery, but got {len(both)}. "
            f"The first: {first(both)}"
        )
    classes = {"train": trained, "query": tested, "gallery": tested}
    tables = {
        side: every.select(sides == side).select_classes(chosen) for side, chosen in classes.items()
    }
    for side, table in tables.items():
        full = f"In-Shop {side} set"
        warn_of_other_counts(path, table, full, NUM_IMAGES[side], NUM_CLASSES[side])
    return Split(tables["train"], tables["query"], gallery=tables["gallery"])


def _status(word: str) -> str:
    if word not in NUM_IMAGES:
        raise ValueError
    return word


def _either(root: str, *names: str) -> str:
    for name in names:
        if os.path.exists(os.path.join(root, name)):
            return os.path.join(root, name)
    raise missing_file_error(root, names[0], EXPECTED)
