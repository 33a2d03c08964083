"""In-Shop Clothes Retrieval (Liu et al. 2016, DeepFashion) in its official layout."""

import os
from collections.abc import Sequence

import numpy as np

from keras_dml._common.errors import ArgumentError
from pipelines.datasets.annotations import check_images, first, read_table
from pipelines.datasets.files import (
    checked_data_dir,
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


def load(data_dir: str | os.PathLike[str] | None) -> Split:
    """In-Shop, with a gallery, in its official split.

    The list specifies the training images, the queries, and the gallery. No image is opened. Rows
    are in the order of the list. Classes (items) are in the order of their names. Queries and
    gallery have the same classes. Another number of images than in the full dataset only causes a
    warning.

    Args:
        data_dir: Folder with the list and `img`, unpacked or as downloaded (`Eval`, `Img`).

    Returns:
        `Split` with the queries as `test`, and with a `gallery`.

    Raises:
        ValueError: The folder, the list, or `img` is missing, a line is invalid (the message names
            file and line), the number of lines is not the announced one, one of the three sets is
            empty, an item is in training and test, or listed images are missing.
    """
    root = checked_data_dir(data_dir, EXPECTED)
    path = _either(root, _LIST, os.path.join("Eval", _LIST))
    images = os.path.dirname(_either(root, "img", os.path.join("Img", "img")))
    columns = {"image_name": str, "item_id": str, "evaluation_status": _status}
    rows = read_table(path, columns, counted=True, header=True)
    check_images(images, rows, _LIST)
    of: dict[str, list[tuple[str, str]]] = {side: [] for side in NUM_IMAGES}
    for name, (item, status) in rows.items():
        of[status].append((os.path.join(images, name), item))
    items = {side: {item for _, item in of[side]} for side in of}
    for side, found in items.items():
        if not found:
            raise ArgumentError(
                f"{path} must list images with evaluation_status {side}, but got none."
            )
    tested = sorted(items["query"] | items["gallery"])
    both = sorted(items["train"].intersection(tested))
    if both:
        raise ArgumentError(
            f"{path} must not have items in both train and query or gallery, but got {len(both)}. "
            f"The first: {first(both)}"
        )
    classes = {"train": sorted(items["train"]), "query": tested, "gallery": tested}
    tables = {side: _table(of[side], classes[side]) for side in of}
    for side, table in tables.items():
        full = f"In-Shop {side} set"
        warn_of_other_counts(path, table, full, NUM_IMAGES[side], NUM_CLASSES[side])
    return Split(tables["train"], tables["query"], gallery=tables["gallery"])


def _status(word: str) -> str:
    if word not in NUM_IMAGES:
        raise ValueError
    return word


def _table(rows: Sequence[tuple[str, str]], classes: Sequence[str]) -> ImageTable:
    number_of = {item: number for number, item in enumerate(classes)}
    labels = np.array([number_of[item] for _, item in rows])
    return ImageTable(labels, tuple(classes), paths=np.array([path for path, _ in rows]))


def _either(root: str, *names: str) -> str:
    for name in names:
        if os.path.exists(os.path.join(root, name)):
            return os.path.join(root, name)
    raise missing_file_error(root, names[0], EXPECTED)
