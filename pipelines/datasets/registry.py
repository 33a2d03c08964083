"""Datasets by name, each split the way its protocol says.

A dataset is a module of this package with a function `load_split(data_dir, train_classes,
test_classes) -> Split`, which takes `crop_to_box` too if its images have bounding boxes, and
`split` and `seed` if not its files say what trains: where the classes are divided, or whether files
divide them, is that function's business. Its docstring is what a list of the datasets says beside
the name.
"""

import difflib
import importlib
import inspect
import os
from types import ModuleType

from keras_dml._common.checks import check_bool, shown
from keras_dml._common.errors import ArgumentError, ArgumentTypeError
from pipelines.datasets.tfds import PREFIX, tfds_split
from pipelines.split import Split, check_split

NAMES = (
    "cars",
    "cub",
    "digits",
    "folder",
    "glyphs",
    "groceries",
    "inshop",
    "sop",
)
"""The datasets: modules of this package."""

DATASETS = (*NAMES, f"{PREFIX}NAME")
"""Names that `load_dataset` knows; `tfds:NAME` stands for those of tensorflow-datasets."""


def load_dataset(
    name: str,
    data_dir: str | os.PathLike | None = None,
    train_classes: int | None = None,
    test_classes: int | None = None,
    crop_to_box: bool = False,
    split: str = "first_classes",
    split_seed: int = 0,
) -> Split:
    """Loads a dataset and splits it into classes to train on and unseen classes to test on.

    Examples:
        >>> split = load_dataset("digits")
        >>> len(split.train), len(split.test), split.same_classes
        (1438, 359, True)

    Args:
        name: one of `DATASETS`. `"glyphs"`: the built-in characters, no files needed. `"cub"`:
            CUB-200-2011, `"cars"`: Cars-196, `"sop"`: Stanford Online Products, `"inshop"`: In-Shop
            (with a gallery), `"groceries"`: the Grocery Store Dataset (with a catalog), in their
            official layouts. `"folder"`: any folder of class folders. `"digits"`: scikit-learn's,
            no files needed; its test images are of the training classes. `"tfds:NAME"` or
            `"tfds:NAME:CONFIG"`: an image classification set of tensorflow-datasets, in its own
            splits or split by class; see `pipelines.datasets.tfds`.
        data_dir: where the files are; not for `"glyphs"` and `"digits"`. For `"tfds:NAME"` None is
            tensorflow-datasets' own folder.
        train_classes: the first so many classes train; not for `"sop"` and `"inshop"`, whose files
            are the split. None: CUB's class ids up to 100, those of Cars-196 up to 98, those of the
            groceries up to 40; the own splits of `"tfds:NAME"`; otherwise the first half of the
            classes, rounded down.
        test_classes: the next so many classes test. None: all the others.
        crop_to_box: whether the images of `"cub"` and `"cars"` are cut down to their bounding
            boxes, which most papers do not do.
        split: which classes train: `"first_classes"`, `"random_classes"`, `"within_classes"` or
            `"every_class"`, see `split_by_class`. Not for `"sop"`, `"inshop"` and `"digits"`.
        split_seed: of what is drawn at random.

    Raises:
        ValueError: for an unknown name, files that are missing or do not fit together, and a
            boundary that leaves train or test empty.
    """
    crop_to_box = check_bool("crop_to_box", crop_to_box)
    if not isinstance(name, str):
        raise ArgumentTypeError(f"name must be a string. Received: name={shown(name)}")
    check_split(split)
    if name in NAMES and (not crop_to_box or _takes(name, "crop_to_box")):
        more: dict[str, object] = {"crop_to_box": True} if crop_to_box else {}
        if split != "first_classes":
            if not takes_split(name):
                raise ArgumentError(
                    f"split (--class_split) must not be given with {name}, whose files say what "
                    f"trains. Received: split={split}"
                )
            more |= {"split": split, "seed": split_seed}
        return _module(name).load_split(data_dir, train_classes, test_classes, **more)
    if crop_to_box:
        boxed = " or ".join(known for known in NAMES if _takes(known, "crop_to_box"))
        raise ArgumentError(
            f"crop_to_box needs a dataset with bounding boxes, {boxed}. Received: dataset={name}"
        )
    if name.startswith(PREFIX):
        return tfds_split(
            name.removeprefix(PREFIX), data_dir, train_classes, test_classes, split, split_seed
        )
    near = difflib.get_close_matches(name, NAMES, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise ArgumentError(
        f"dataset must be one of {', '.join(DATASETS)}.{hint} Received: dataset={name}"
    )


def takes_split(name: str) -> bool:
    """Whether the classes of a dataset can be divided otherwise than its own files divide them."""
    return name not in NAMES or _takes(name, "split")


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"pipelines.datasets.{name}")


def _takes(name: str, argument: str) -> bool:
    return argument in inspect.signature(_module(name).load_split).parameters
