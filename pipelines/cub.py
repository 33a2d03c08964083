"""Caltech-UCSD Birds-200-2011 (Wah et al. 2011) in its official layout."""

import os

import numpy as np

from pipelines.data_folder import LOGGER, checked_data_dir
from pipelines.table import ImageTable

NUM_IMAGES = 11_788
NUM_CLASSES = 200
LAST_TRAIN_CLASS = 100
"""Class ids 1 to 100 train, 101 to 200 test."""

EXPECTED = (
    "Expected the unpacked archive CUB_200_2011 of Caltech-UCSD Birds-200-2011 (from the Caltech "
    "data repository, CaltechDATA), that is images.txt, image_class_labels.txt and images/."
)


def cub(data_dir) -> ImageTable:
    """Reads the annotation files; opens no image.

    Rows are in the order of `images.txt`, classes in the order of their ids. A folder with other
    counts than the full dataset's is read all the same, with a warning.

    Args:
        data_dir: the folder `CUB_200_2011`, or the one that holds it.

    Raises:
        ValueError: when the folder or a file in it is missing, a line of a file does not parse
            (the message names file and line), the files disagree, or listed images are not there.
    """
    return read_cub(data_dir)[0]


def read_cub(data_dir) -> tuple[ImageTable, np.ndarray]:
    """The table as `cub` returns it, and the dataset's own id of each of its classes."""
    root = checked_data_dir(data_dir, EXPECTED)
    if not os.path.exists(os.path.join(root, "images.txt")):
        root = os.path.join(root, "CUB_200_2011")
    for name in ("images.txt", "image_class_labels.txt", "images"):
        if not os.path.exists(os.path.join(root, name)):
            raise ValueError(f"data_dir holds no {name}. {EXPECTED} Received: data_dir={data_dir}")
    images = _read_pairs(os.path.join(root, "images.txt"), "image_id path")
    labels = _read_pairs(os.path.join(root, "image_class_labels.txt"), "image_id class_id")
    unpaired = sorted(images.keys() ^ labels.keys())
    if unpaired:
        raise ValueError(
            f"images.txt and image_class_labels.txt in {root} disagree: {len(unpaired)} image ids "
            f"are in one of them only. The first: {_first(unpaired)}"
        )
    _check_files(root, images.values())
    class_of_row = np.array([labels[image] for image in images])
    class_ids = np.unique(class_of_row)
    table = ImageTable.from_paths(
        [os.path.join(root, "images", path) for path in images.values()],
        class_of_row,
        _class_names(root, class_ids),
    )
    if (len(table), table.num_classes) != (NUM_IMAGES, NUM_CLASSES):
        LOGGER.warning(
            "%s: found %d images of %d classes; the full CUB-200-2011 has %d of %d",
            root,
            len(table),
            table.num_classes,
            NUM_IMAGES,
            NUM_CLASSES,
        )
    return table, class_ids


def _class_names(root: str, class_ids: np.ndarray) -> list[str] | None:
    """Names of the classes from classes.txt, None without that file."""
    path = os.path.join(root, "classes.txt")
    if not os.path.exists(path):
        return None
    names = _read_pairs(path, "class_id name")
    nameless = [number for number in class_ids.tolist() if number not in names]
    if nameless:
        raise ValueError(
            f"{path} names no class for {len(nameless)} of the class ids. "
            f"The first: {_first(nameless)}"
        )
    return [names[number] for number in class_ids.tolist()]


def _read_pairs(path: str, form: str) -> dict:
    """Reads lines `id value`: ids become integers, and so do values where `form` ends in `_id`."""
    pairs = {}
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                key, value = line.decode("utf-8").split(maxsplit=1)
                key = int(key)
                value = int(value) if form.endswith("_id") else value.strip()
            except ValueError as error:
                raise ValueError(
                    f"{path}, line {number}: expected '{form}'. "
                    f"Received: {line.decode('utf-8', 'replace').strip()!r}"
                ) from error
            if key in pairs:
                raise ValueError(f"{path}, line {number}: the id {key} is there already.")
            pairs[key] = value
    if not pairs:
        raise ValueError(f"{path} is empty: expected lines '{form}'.")
    return pairs


def _check_files(root: str, paths):
    """Raises unless all listed images exist; lists each folder once, which network disks thank."""
    present = {}
    missing = []
    for path in paths:
        folder, name = os.path.split(os.path.join(root, "images", path))
        if folder not in present:
            present[folder] = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        if name not in present[folder]:
            missing.append(path)
    if missing:
        raise ValueError(
            f"{len(missing)} images listed in images.txt are not in "
            f"{os.path.join(root, 'images')}. The first: {_first(missing)}"
        )


def _first(items) -> str:
    return ", ".join(str(item) for item in items[:5])
