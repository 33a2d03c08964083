"""Datasets by name, with their official splits.

A dataset is a module of this package with a function `load`. It returns a `Split` if its files
define the split, and an `Unsplit` otherwise. It has an argument `data_dir` if it reads files,
`crop_to_box` if its images have bounding boxes, and `num_classes` if fewer classes take less time.
The first line of its docstring describes the dataset in lists.
"""

import difflib
import importlib
import inspect
import os
from collections.abc import Callable

from keras_dml._common.checks import check_bool, check_choice
from keras_dml._common.errors import ArgumentError, ArgumentTypeError, argument_error
from pipelines.datasets.files import check_not_given, check_separate
from pipelines.datasets.tfds import PREFIX, tfds_split
from pipelines.split import SPLITS, Split, Unsplit

NAMES = (
    "cars",
    "cub",
    "digits",
    "folder",
    "glyphs",
    "groceries",
    "inshop",
    "sop",
    "table",
)
"""Names of datasets, which are modules of this package."""

DATASETS = (*NAMES, f"{PREFIX}NAME")
"""Names for `load_dataset`. `tfds:NAME` stands for any dataset of tensorflow-datasets."""


def load_dataset(
    name: str,
    data_dir: str | os.PathLike | None = None,
    train_classes: int | None = None,
    test_classes: int | None = None,
    crop_to_box: bool = False,
    split: str = "first_classes",
    split_seed: int = 0,
    several_classes: bool = False,
    outside_paths: bool = True,
) -> Split:
    """Load a dataset and split it into training classes and unseen test classes.

    Examples:
        >>> split = load_dataset("digits")
        >>> len(split.train), len(split.test), split.same_classes
        (1438, 359, True)

    Args:
        name: One of `DATASETS`:

            - `"glyphs"`: built-in characters, without files
            - `"digits"`: scikit-learn's digits, without files, tested on the training classes
            - `"cub"`, `"cars"`, `"sop"`: CUB-200-2011, Cars-196, and Stanford Online Products in
              their official layouts
            - `"inshop"`: In-Shop, with a gallery
            - `"groceries"`: the Grocery Store Dataset, with a catalog
            - `"folder"`: any folder of class folders
            - `"table"`: a CSV, TSV, or Parquet file, see `pipelines.read_table`
            - `"tfds:NAME"`, `"tfds:NAME:CONFIG"`: an image classification dataset of
              tensorflow-datasets, see `pipelines.datasets.tfds`
        data_dir: Folder of the files, or the file of `"table"`. None for `"glyphs"` and `"digits"`,
            and for the default folder of tensorflow-datasets.
        train_classes: Number of training classes. None: the official boundary (class ids up to 100
            for CUB, 98 for Cars-196, 40 for the groceries), the dataset's splits for `"tfds:NAME"`,
            or half of the classes, rounded down. Must be None for `"sop"` and `"inshop"`, whose
            files define the split.
        test_classes: Number of test classes. None: all other classes.
        crop_to_box: Whether to crop images of `"cub"` and `"cars"` to their bounding boxes. Most
            papers do not.
        split: How to choose the classes: `"first_classes"`, `"random_classes"`, `"within_classes"`,
            or `"every_class"`, see `split_by_class`. Not for `"sop"`, `"inshop"`, and `"digits"`.
        split_seed: Seed of the random choices of `split`.
        several_classes: Whether an image of `"table"` can have several classes, for a training with
            texts or tags. Otherwise, two equal pictures would be a negative pair.
        outside_paths: Whether `"table"` can name images outside its folder, as in
            `pipelines.read_table`. Other datasets cannot.

    Raises:
        ValueError: The name is unknown, files are missing or disagree, a file has two classes or is
            in training and test, or one side of the split is empty.
    """
    crop_to_box = check_bool("crop_to_box", crop_to_box)
    outside_paths = check_bool("outside_paths", outside_paths)
    if not isinstance(name, str):
        raise argument_error("name", "a string", name, ArgumentTypeError)
    check_choice("split", split, SPLITS)
    numbers = {"train_classes": train_classes, "test_classes": test_classes}
    if name not in NAMES and not name.startswith(PREFIX):
        near = difflib.get_close_matches(name, NAMES, 1)
        advice = f"Did you mean {near[0]}?" if near else ""
        raise argument_error("dataset", f"one of {', '.join(DATASETS)}", name, advice=advice)
    if crop_to_box and (name not in NAMES or not _takes(name, "crop_to_box")):
        boxed = " and ".join(known for known in NAMES if _takes(known, "crop_to_box"))
        raise ArgumentError(
            f"crop_to_box must be False except for {boxed}, which have bounding boxes, but got "
            f"True for {name}."
        )
    if name not in NAMES:
        return tfds_split(
            name.removeprefix(PREFIX), data_dir, **numbers, split=split, seed=split_seed
        )
    if not takes_split(name):
        if split != "first_classes":
            raise ArgumentError(
                f"split (--class_split) must not be set with {name}, which has an official split, "
                f"but got {split}."
            )
        check_not_given(name, "has an official split", **numbers)
    arguments: dict[str, object] = {"crop_to_box": True} if crop_to_box else {}
    if _takes(name, "several_classes"):
        arguments["several_classes"] = check_bool("several_classes", several_classes)
    if _takes(name, "outside_paths"):
        arguments["outside_paths"] = outside_paths
    if _takes(name, "data_dir"):
        arguments["data_dir"] = data_dir
    else:
        check_not_given(name, "reads no files", data_dir=data_dir)
    first = split == "first_classes" and _takes(name, "num_classes")
    if first and train_classes and test_classes and min(train_classes, test_classes) > 0:
        arguments["num_classes"] = train_classes + test_classes
    try:
        loaded = _load(name)(**arguments)
    except ArgumentError as error:
        if error.argument != "num_classes":
            raise
        raise ArgumentError(error.renamed("train_classes + test_classes")) from error
    if not isinstance(loaded, Split):
        loaded = loaded.split(**numbers, split=split, seed=split_seed)
    if split != "every_class":
        check_separate(loaded)
    return loaded


def takes_split(name: str) -> bool:
    """Return whether `load_dataset` accepts other values of `split` than the default."""
    return name not in NAMES or inspect.signature(_load(name)).return_annotation is Unsplit


def _load(name: str) -> Callable[..., Split | Unsplit]:
    return importlib.import_module(f"pipelines.datasets.{name}").load


def _takes(name: str, argument: str) -> bool:
    return argument in inspect.signature(_load(name)).parameters
