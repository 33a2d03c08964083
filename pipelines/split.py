"""Splits of a dataset into training and test images, and folds of the training classes."""

import dataclasses

import numpy as np

from keras_dml._common.checks import argument_error, check_bool, check_choice, check_whole
from keras_dml._common.errors import ArgumentError
from pipelines.table import ImageTable, check_table

SPLITS = ("first_classes", "random_classes", "within_classes", "every_class")
"""Ways to split a dataset by class, see `split_by_class`."""

_BY_NUMBER = SPLITS[:2]  # these take numbers of classes


@dataclasses.dataclass(frozen=True)
class Split:
    """A dataset's training images and test images.

    Examples:
        >>> table = ImageTable.from_arrays(np.zeros((40, 8), "float32"), np.arange(40) // 4)
        >>> train, test = map(table.select_classes, (np.arange(6), np.arange(6, 10)))
        >>> split = Split(train, test)
        >>> {side: len(images) for side, images in split.tables.items()}
        {'training': 24, 'test': 16}

    Attributes:
        train: Training images.
        test: Test images. Each is a query that searches the gallery, or the other test images
            without a gallery.
        same_classes: If True, training and test images have the same classes, with the same
            numbers. If False, training does not see the test classes, and each side numbers its
            classes from 0.
        gallery: Images that the test images search, of the test classes. None for no gallery.
        catalog: One or a few product pictures of each test class, or None. The test images search
            the catalog in a separate evaluation: which product does the photo show?
        training_catalog: Product pictures of each training class, or None. They are only for
            training, and not among `tables`.

    Raises:
        TypeError: A table is not an `ImageTable`, or `same_classes` is not a bool.
        ValueError: `same_classes` is True, but the class names of both sides differ. Or the class
            names of the gallery or the catalog differ from the test names, or the names of the
            training catalog from the training images' names.
    """

    train: ImageTable
    test: ImageTable
    same_classes: bool = False
    gallery: ImageTable | None = None
    catalog: ImageTable | None = None
    training_catalog: ImageTable | None = None

    @property
    def tables(self) -> dict[str, ImageTable]:
        """The tables that are not None, by name: "training", "test", "gallery", "catalog"."""
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
        for name, side in (
            ("gallery", "test"),
            ("catalog", "test"),
            ("training_catalog", "train"),
        ):
            table, images = getattr(self, name), getattr(self, side)
            if table is not None:
                check_table(name, table)
            if table is not None and table.class_names != images.class_names:
                raise ArgumentError(
                    f"{name} must have the class_names of {side}, but got {images!r} as {side} and "
                    f"{table!r} as {name}."
                )
        if self.same_classes and self.train.class_names != self.test.class_names:
            raise ArgumentError(
                "same_classes must be False if train and test have different class_names, but got "
                f"True for {self.train!r} as train and {self.test!r} as test."
            )


def split_by_class(
    table: ImageTable,
    train_classes: int | None = None,
    test_classes: int | None = None,
    catalog: ImageTable | None = None,
    split: str = "first_classes",
    seed: int = 0,
) -> Split:
    """Split a table into classes for training and unseen classes for the test.

    Args:
        table: The whole dataset.
        train_classes: Number of training classes. None: half of the classes, rounded down.
        test_classes: Number of test classes. None: all other classes.
        catalog: Product pictures of the same classes. Both sides get the pictures of their classes.
        split: How to choose the classes:

            - `"first_classes"`: The first classes are for training, the next for the test.
            - `"random_classes"`: As before, but in an order that only depends on `seed` and the
              number of classes.
            - `"within_classes"`: A random half of the images of each class, rounded up, is for
              training, and the rest for the test. The scores then are about known classes.
            - `"every_class"`: All images are for training, and also for the test. For a final
              model. The scores then have no meaning.

            The last two do not take `train_classes` and `test_classes`.
        seed: Seed of the random choices, 0 or more.

    Raises:
        TypeError: `table` or `catalog` is not an `ImageTable`, or a number is not an integer.
        ValueError: One side is empty, the table has too few classes, `split` is unknown, or `split`
            does not take a number of classes.

    Examples:

        table = ImageTable.from_arrays(np.zeros((40, 8), "float32"), np.arange(40) // 4)
        unseen = split_by_class(table, train_classes=7, split="random_classes", seed=1)
    """
    check_table("table", table)
    if catalog is not None:
        check_table("catalog", catalog)
    check_choice("split", split, SPLITS)
    seed = check_whole("seed", seed, least=0)
    if split not in _BY_NUMBER:
        if train_classes is not None or test_classes is not None:
            raise ArgumentError(
                f"train_classes and test_classes must not be set with split={split}, which trains "
                f"on all classes, but got {train_classes} and {test_classes}."
            )
        if split == "every_class":
            return Split(table, table, same_classes=True, catalog=catalog, training_catalog=catalog)
        return _within_classes(table, catalog, seed)
    count = table.num_classes
    if count < 2:
        raise ArgumentError(
            "The dataset must have at least 2 classes, because some train and the others test, but "
            f"got {count} ({', '.join(table.class_names)})."
        )
    train = count // 2 if train_classes is None else check_whole("train_classes", train_classes)
    test = count - train if test_classes is None else check_whole("test_classes", test_classes)
    for side, size in (("train", train), ("test", test)):
        if size < 1:
            advice = (
                f"The dataset has {count} classes, and a boundary after the first {train} leaves "
                f"no class to {side}."
            )
            raise argument_error(f"{side}_classes", "at least 1", size, advice=advice)
    if train + test > count:
        raise ArgumentError(
            f"train_classes and test_classes must be at most {count} in total, the number of "
            f"classes, but got {train} and {test}."
        )
    order = np.arange(count)
    if split == "random_classes":
        order = np.random.default_rng(seed).permutation(count)
    # Keep the table's order, so that only the choice of the classes is random.
    trained, tested = np.sort(order[:train]), np.sort(order[train : train + test])
    return Split(
        train=table.select_classes(trained),
        test=table.select_classes(tested),
        catalog=None if catalog is None else catalog.select_classes(tested),
        training_catalog=None if catalog is None else catalog.select_classes(trained),
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
            "The dataset must have at least 2 images of a class, because one half trains and the "
            f"other tests, but got {table}."
        )
    train, test = (table.select(np.sort(by_class[chosen])) for chosen in (trains, ~trains))
    return Split(train, test, same_classes=True, catalog=catalog, training_catalog=catalog)


@dataclasses.dataclass(frozen=True)
class Unsplit:
    """A dataset whose files do not divide its classes into training and test classes.

    Attributes:
        table: The whole dataset, with classes in the order of their ids.
        catalog: Product pictures of the same classes, or None.
        class_ids: The dataset's ids of the classes, integers `[num_classes]`. None if the dataset
            has no official boundary.
        last_train_class: Last id of the official training classes.
        of_one_class: Message of the error if the only class of the table must be split.
    """

    table: ImageTable
    catalog: ImageTable | None = None
    class_ids: np.ndarray | None = None
    last_train_class: int = 0
    of_one_class: str | None = None

    def split(
        self, train_classes: int | None, test_classes: int | None, split: str, seed: int
    ) -> Split:
        """Split at the official boundary, or as `split_by_class` does.

        Raises:
            ValueError: One side is empty, or the table has too few classes.
        """
        ids = self.class_ids
        if self.of_one_class and self.table.num_classes < 2 and split in _BY_NUMBER:
            raise ArgumentError(self.of_one_class)
        if ids is not None and train_classes is None and split in _BY_NUMBER:
            train_classes = int(np.count_nonzero(ids <= self.last_train_class))
            if train_classes in (0, len(ids)):
                side = "train" if train_classes == 0 else "test"
                raise ArgumentError(
                    "data_dir must contain classes on both sides of the official boundary, class "
                    f"id {self.last_train_class}, but got {len(ids)} classes, ids {ids[0]} to "
                    f"{ids[-1]}, and no class to {side}. Set train_classes (--train_classes), the "
                    "number of classes to train on."
                )
        return split_by_class(self.table, train_classes, test_classes, self.catalog, split, seed)


def training_fold(split: Split, fold: int, folds: int) -> Split:
    """Split the training classes into training classes and one held-out fold.

    The folds are disjoint sets of consecutive classes whose sizes differ by at most one class. They
    depend only on the numbers of classes and folds. The result does not contain the test images,
    the gallery, and the catalog of `split`, so settings that you choose with it have not seen them.

    Args:
        split: Split of a dataset.
        fold: Number of the held-out fold, from 1.
        folds: Number of folds, 2 or more.

    Returns:
        A `Split` of training classes: `train` has the classes of the other folds, `test` has those
        of fold `fold`.

    Raises:
        TypeError: `fold` or `folds` is not an integer.
        ValueError: `fold` is out of range, or there are fewer training classes than folds.

    Reference: Musgrave et al. 2020, "A Metric Learning Reality Check", which uses four folds of the
    training classes.

    Examples:

        table = pipelines.ImageTable.from_arrays(np.zeros((80, 8)), np.arange(80) // 4)
        whole = pipelines.split_by_class(table)  # 10 training classes, 10 test classes
        first = training_fold(whole, 1, 4)  # 7 training classes, 3 held out
    """
    folds = check_whole("folds", folds, least=2)
    fold = check_whole("fold", fold, least=1)
    if fold > folds:
        raise argument_error("fold", f"at most folds={folds}", fold)
    table = split.train
    if table.num_classes < folds:
        wanted = f"at most {table.num_classes}, the number of training classes"
        raise argument_error("folds", wanted, folds)
    parts = np.array_split(np.arange(table.num_classes), folds)
    kept_back = parts.pop(fold - 1)
    trained, catalog = np.concatenate(parts), split.training_catalog
    return Split(
        table.select_classes(trained),
        table.select_classes(kept_back),
        training_catalog=None if catalog is None else catalog.select_classes(trained),
    )
