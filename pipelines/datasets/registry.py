"""Datasets by name, each split the way its protocol says.

A dataset joins by one function `(data_dir, train_classes, test_classes) -> Split` in `READERS`,
whose docstring is what a list of datasets says beside the name. A `crop_to_box` as its fourth
argument says that its images have bounding boxes. Where the classes are divided, or whether files
divide them, is that function's business.
"""

import inspect
import os

import numpy as np

from pipelines.datasets.tfds import PREFIX, tfds_split
from pipelines.errors import ArgumentError
from pipelines.split import Split, split_by_class
from pipelines.table import ImageTable


def load_dataset(
    name: str,
    data_dir: str | os.PathLike | None = None,
    train_classes: int | None = None,
    test_classes: int | None = None,
    crop_to_box: bool = False,
) -> Split:
    """Loads a dataset and splits it into classes to train on and unseen classes to test on.

    Args:
        name: one of `DATASETS`. `"glyphs"`: the built-in characters, no files needed. `"cub"`:
            CUB-200-2011, `"cars"`: Cars-196, `"sop"`: Stanford Online Products, `"inshop"`: In-Shop
            (with a gallery), in their official layouts. `"folder"`: any folder of class folders.
            `"digits"`: scikit-learn's, no files needed; its test images are of the training
            classes. `"tfds:NAME"` or `"tfds:NAME:CONFIG"`: an image classification set of
            tensorflow-datasets, in its own splits or split by class; see `pipelines.datasets.tfds`.
        data_dir: where the files are; not for `"glyphs"` and `"digits"`. For `"tfds:NAME"` None is
            tensorflow-datasets' own folder.
        train_classes: the first so many classes train; not for `"sop"` and `"inshop"`, whose files
            are the split. None: CUB's class ids up to 100, those of Cars-196 up to 98; the own
            splits of `"tfds:NAME"`; otherwise the first half of the classes, rounded down.
        test_classes: the next so many classes test. None: all the others.
        crop_to_box: whether the images of `"cub"` and `"cars"` are cut down to their bounding
            boxes, which most papers do not do.

    Raises:
        ValueError: for an unknown name, files that are missing or do not fit together, and a
            boundary that leaves train or test empty.
    """
    boxed = [known for known, reader in READERS.items() if _takes_boxes(reader)]
    if name in boxed:
        return READERS[name](data_dir, train_classes, test_classes, crop_to_box)
    if crop_to_box:
        raise ArgumentError(
            f"crop_to_box needs a dataset with bounding boxes, {' or '.join(boxed)}. "
            f"Received: dataset={name}"
        )
    if name.startswith(PREFIX):
        return tfds_split(name.removeprefix(PREFIX), data_dir, train_classes, test_classes)
    if name not in READERS:
        raise ArgumentError(
            f"dataset must be one of {', '.join(DATASETS)}. Received: dataset={name}"
        )
    return READERS[name](data_dir, train_classes, test_classes)


def _glyphs(data_dir, train_classes, test_classes) -> Split:
    """Built in."""
    from pipelines.datasets.glyphs import glyphs

    _refuse("glyphs", "reads no files", data_dir=data_dir)
    wanted = None
    if train_classes and test_classes and min(train_classes, test_classes) > 0:
        # Drawing takes time, and the first classes are the same however many are drawn.
        wanted = train_classes + test_classes
    try:
        table = glyphs(num_classes=wanted)
    except ValueError as error:
        raise ArgumentError(
            f"train_classes={train_classes} and test_classes={test_classes} do not fit: {error}"
        ) from error
    return split_by_class(table, train_classes, test_classes)


def _digits(data_dir, train_classes, test_classes) -> Split:
    """Built in; tests the classes it trains on."""
    from pipelines.datasets.digits import digits

    _refuse("digits", "reads no files", data_dir=data_dir)
    reason = "trains and tests on the same ten classes"
    _refuse("digits", reason, train_classes=train_classes, test_classes=test_classes)
    return digits()


def _refuse(dataset, reason, **arguments):
    for name, value in arguments.items():
        if value not in (None, ""):
            raise ArgumentError(
                f"{name} must not be given with {dataset}, which {reason}. Received: {name}={value}"
            )


def _cub(data_dir, train_classes, test_classes, crop_to_box) -> Split:
    """CUB-200-2011."""
    from pipelines.datasets.cub import LAST_TRAIN_CLASS, read_cub

    table, class_ids = read_cub(data_dir, crop_to_box)
    return _split_by_id(table, class_ids, LAST_TRAIN_CLASS, train_classes, test_classes)


def _cars(data_dir, train_classes, test_classes, crop_to_box) -> Split:
    """Cars-196."""
    from pipelines.datasets.cars import LAST_TRAIN_CLASS, read_cars

    table, class_ids = read_cars(data_dir, crop_to_box)
    return _split_by_id(table, class_ids, LAST_TRAIN_CLASS, train_classes, test_classes)


def _split_by_id(table, class_ids, last_train_class, train_classes, test_classes) -> Split:
    if train_classes is None:
        train_classes = _official_boundary(table, class_ids, last_train_class)
    return split_by_class(table, train_classes, test_classes)


def _sop(data_dir, train_classes, test_classes) -> Split:
    """Stanford Online Products."""
    from pipelines.datasets.sop import sop

    _refuse("sop", "is split by its lists", train_classes=train_classes, test_classes=test_classes)
    return sop(data_dir)


def _inshop(data_dir, train_classes, test_classes) -> Split:
    """In-Shop, with a gallery."""
    from pipelines.datasets.inshop import inshop

    reason = "is split by its list"
    _refuse("inshop", reason, train_classes=train_classes, test_classes=test_classes)
    return inshop(data_dir)


def _folder(data_dir, train_classes, test_classes) -> Split:
    """One folder a class."""
    from pipelines.datasets.folder import folder

    return split_by_class(folder(data_dir), train_classes, test_classes)


def _official_boundary(table: ImageTable, class_ids: np.ndarray, last_train_class: int) -> int:
    """How many of a table's classes have ids up to the last one that trains."""
    train = int(np.count_nonzero(class_ids <= last_train_class))
    if train in (0, table.num_classes):
        side = "train" if train == 0 else "test"
        raise ArgumentError(
            f"The official boundary, class ids up to {last_train_class} train, leaves no class to "
            f"{side}: data_dir holds {table.num_classes} classes, ids {class_ids[0]} to "
            f"{class_ids[-1]}. Set train_classes (--train_classes), the number of classes to train "
            "on."
        )
    return train


def _takes_boxes(reader) -> bool:
    return "crop_to_box" in inspect.signature(reader).parameters


READERS = {
    "cars": _cars,
    "cub": _cub,
    "digits": _digits,
    "folder": _folder,
    "glyphs": _glyphs,
    "inshop": _inshop,
    "sop": _sop,
}

DATASETS = (*READERS, f"{PREFIX}NAME")
"""Names that `load_dataset` knows; `tfds:NAME` stands for those of tensorflow-datasets."""
