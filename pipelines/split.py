"""A dataset's split into training and test images."""

from dataclasses import dataclass

import numpy as np

from pipelines.checks import check_bool, whole_number
from pipelines.errors import ArgumentError
from pipelines.table import ImageTable, check_table


@dataclass(frozen=True)
class Split:
    """Training images and test images.

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


def split_by_class(
    table: ImageTable,
    train_classes: int | None = None,
    test_classes: int | None = None,
    catalog: ImageTable | None = None,
) -> Split:
    """Splits a table into classes to train on and unseen classes to test on.

    Args:
        table: the whole dataset.
        train_classes: the first so many classes train. None: the first half, rounded down.
        test_classes: the next so many classes test. None: all the others.
        catalog: pictures of the same classes; those of the test classes are the split's.

    Raises:
        TypeError: `table` or `catalog` is no `ImageTable`, a number of classes no whole number.
        ValueError: when a side would be empty, or there are not that many classes.
    """
    check_table("table", table)
    if catalog is not None:
        check_table("catalog", catalog)
    count = table.num_classes
    train = count // 2 if train_classes is None else whole_number("train_classes", train_classes)
    test = count - train if test_classes is None else whole_number("test_classes", test_classes)
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
    tested = np.arange(train, train + test)
    return Split(
        train=table.select_classes(np.arange(train)),
        test=table.select_classes(tested),
        catalog=None if catalog is None else catalog.select_classes(tested),
    )


def split_by_id(
    table: ImageTable,
    class_ids: np.ndarray,
    last_train_class: int,
    train_classes: int | None = None,
    test_classes: int | None = None,
    catalog: ImageTable | None = None,
) -> Split:
    """`split_by_class` at a dataset's official boundary, or where `train_classes` says.

    Args:
        table: the whole dataset, its classes in the order of their ids.
        class_ids: the dataset's own id of each class.
        last_train_class: the last id that trains.
        train_classes: how many classes train. None: those with ids up to `last_train_class`.
        test_classes: the next so many classes test. None: all the others.
        catalog: as for `split_by_class`.

    Raises:
        ValueError: when a side would be empty, or there are not that many classes.
    """
    if train_classes is None:
        train_classes = int(np.count_nonzero(class_ids <= last_train_class))
        if train_classes in (0, table.num_classes):
            side = "train" if train_classes == 0 else "test"
            raise ArgumentError(
                f"The official boundary, class ids up to {last_train_class} train, leaves no class "
                f"to {side}: data_dir holds {table.num_classes} classes, ids {class_ids[0]} to "
                f"{class_ids[-1]}. Set train_classes (--train_classes), the number of classes to "
                "train on."
            )
    return split_by_class(table, train_classes, test_classes, catalog)
