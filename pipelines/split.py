"""A dataset's split into training and test images."""

from dataclasses import dataclass

import numpy as np

from keras_dml._common.checks import check_bool, check_whole, shown
from keras_dml._common.errors import ArgumentError
from pipelines.table import ImageTable, check_table

SPLITS = ("first_classes", "random_classes", "within_classes", "every_class")
"""How classes are divided; see `split_by_class`."""


@dataclass(frozen=True)
class Split:
    """Training images and test images.

    Examples:
        >>> table = ImageTable.from_arrays(np.zeros((40, 8), "float32"), np.arange(40) // 4)
        >>> train, test = map(table.select_classes, (np.arange(6), np.arange(6, 10)))
        >>> split = Split(train, test)
        >>> {side: len(images) for side, images in split.tables.items()}
        {'training': 24, 'test': 16}

    Attributes:
        train: what to train on.
        test: what to test on: each image is a query against all the others or, where there is a
            gallery, against that.
        same_classes: whether the test images are others of the training classes (the same numbers
            mean the same classes). Otherwise the test classes are unseen in training, and each side
            numbers its own from 0.
        gallery: what the test images are looked for in, of the test classes; or None.
        catalog: pictures of the test classes, one or a few of each, that the test images are looked
            for in too, as a question of its own: which product is it? Or None.

    Raises:
        TypeError: no `ImageTable`, `same_classes` no bool.
        ValueError: `same_classes`, but the sides do not name the same classes; or a gallery or
            catalog that does not name those of the test images.
    """

    train: ImageTable
    test: ImageTable
    same_classes: bool = False
    gallery: ImageTable | None = None
    catalog: ImageTable | None = None

    @property
    def tables(self) -> dict[str, ImageTable]:
        """Those there are, by what they are for: "training", "test", "gallery", "catalog"."""
        tables = {
            "training": self.train,
            "test": self.test,
            "gallery": self.gallery,
            "catalog": self.catalog,
        }
        return {name: table for name, table in tables.items() if table is not None}

    def __post_init__(self) -> None:
        check_table("train", self.train)
        check_table("test", self.test)
        object.__setattr__(self, "same_classes", check_bool("same_classes", self.same_classes))
        for name, table in (("gallery", self.gallery), ("catalog", self.catalog)):
            if table is not None:
                check_table(name, table)
            if table is not None and table.class_names != self.test.class_names:
                raise ArgumentError(
                    f"{name} needs the class_names of test. "
                    f"Received: {self.test!r} to test, {table!r} as {name}"
                )
        if self.same_classes and self.train.class_names != self.test.class_names:
            raise ArgumentError(
                "same_classes needs the same class_names on both sides. "
                f"Received: {self.train!r} to train, {self.test!r} to test"
            )


def check_split(split: str) -> None:
    """ValueError unless it is one of `SPLITS`."""
    if not isinstance(split, str) or split not in SPLITS:
        raise ArgumentError(
            f"split must be one of {', '.join(SPLITS)}. Received: split={shown(split)}"
        )


def split_by_class(
    table: ImageTable,
    train_classes: int | None = None,
    test_classes: int | None = None,
    catalog: ImageTable | None = None,
    split: str = "first_classes",
    seed: int = 0,
) -> Split:
    """Splits a table into classes to train on and unseen classes to test on.

    Args:
        table: the whole dataset.
        train_classes: so many classes train. None: half of them, rounded down.
        test_classes: so many of the others test. None: all the others.
        catalog: pictures of the same classes; those of the test classes are the split's.
        split: which they are. `"first_classes"`: the first train, the next test.
            `"random_classes"`: drawn at random, a pure function of (`seed`, number of classes).
            `"within_classes"`: half of the images of each class, rounded up and drawn at random,
            train, the others test; what that measures is closed, of classes that are known.
            `"every_class"`: all images train, and the same are what is tested, which measures
            nothing: for a final model. The last two take no numbers of classes.
        seed: a whole number, at least 0.

    Raises:
        TypeError: `table` or `catalog` is no `ImageTable`, a number of classes no whole number.
        ValueError: when a side would be empty, there are not that many classes, `split` is another
            name, or it takes no numbers of classes.

    Examples:

        table = ImageTable.from_arrays(np.zeros((40, 8), "float32"), np.arange(40) // 4)
        unseen = split_by_class(table, train_classes=7, split="random_classes", seed=1)
    """
    check_table("table", table)
    if catalog is not None:
        check_table("catalog", catalog)
    check_split(split)
    seed = check_whole("seed", seed, least=0)
    if split in ("within_classes", "every_class"):
        if train_classes is not None or test_classes is not None:
            raise ArgumentError(
                f"train_classes and test_classes must not be given with split={split}, where all "
                f"classes train. Received: train_classes={train_classes}, "
                f"test_classes={test_classes}"
            )
        if split == "every_class":
            return Split(table, table, same_classes=True, catalog=catalog)
        return _within_classes(table, catalog, seed)
    count = table.num_classes
    train = count // 2 if train_classes is None else check_whole("train_classes", train_classes)
    test = count - train if test_classes is None else check_whole("test_classes", test_classes)
    asked = f"train_classes={train_classes}, test_classes={test_classes}"
    for side, size in (("train", train), ("test", test)):
        if size < 1:
            raise ArgumentError(
                f"The dataset has {count} classes: a boundary after the first {train} leaves no "
                f"class to {side}. Received: {asked}"
            )
    if train + test > count:
        raise ArgumentError(
            f"The dataset has {count} classes, fewer than the {train} to train and {test} to "
            f"test. Received: {asked}"
        )
    order = np.arange(count)
    if split == "random_classes":
        order = np.random.default_rng(seed).permutation(count)
    # In the table's order, so that only which classes they are is random.
    tested = np.sort(order[train : train + test])
    return Split(
        train=table.select_classes(np.sort(order[:train])),
        test=table.select_classes(tested),
        catalog=None if catalog is None else catalog.select_classes(tested),
    )


def _within_classes(table: ImageTable, catalog: ImageTable | None, seed: int) -> Split:
    shuffled = np.random.default_rng(seed).permutation(len(table))
    by_class = shuffled[np.argsort(table.labels[shuffled], kind="stable")]
    labels = table.labels[by_class]
    _, starts, sizes = np.unique(labels, return_index=True, return_counts=True)
    place = np.arange(len(labels)) - np.repeat(starts, sizes)
    trains = place < np.repeat((sizes + 1) // 2, sizes)
    if trains.all():
        raise ArgumentError(
            "split=within_classes needs a class of two images or more: half of each class's tests. "
            f"Received: {table!r}"
        )
    train, test = (table.select(np.sort(by_class[chosen])) for chosen in (trains, ~trains))
    return Split(train, test, same_classes=True, catalog=catalog)


def split_by_id(
    table: ImageTable,
    class_ids: np.ndarray,
    last_train_class: int,
    train_classes: int | None = None,
    test_classes: int | None = None,
    catalog: ImageTable | None = None,
    split: str = "first_classes",
    seed: int = 0,
) -> Split:
    """`split_by_class` at a dataset's official boundary, or where `train_classes` says.

    Args:
        table: the whole dataset, its classes in the order of their ids.
        class_ids: the dataset's own id of each class.
        last_train_class: the last id that trains.
        train_classes: how many classes train. None: those with ids up to `last_train_class`.
        test_classes: the next so many classes test. None: all the others.
        catalog, split, seed: as for `split_by_class`.

    Raises:
        ValueError: when a side would be empty, or there are not that many classes.
    """
    if train_classes is None and split in ("first_classes", "random_classes"):
        train_classes = int(np.count_nonzero(class_ids <= last_train_class))
        if train_classes in (0, table.num_classes):
            side = "train" if train_classes == 0 else "test"
            raise ArgumentError(
                f"The official boundary, class ids up to {last_train_class} train, leaves no class "
                f"to {side}: data_dir holds {table.num_classes} classes, ids {class_ids[0]} to "
                f"{class_ids[-1]}. Set train_classes (--train_classes), the number of classes to "
                "train on."
            )
    return split_by_class(table, train_classes, test_classes, catalog, split, seed)
