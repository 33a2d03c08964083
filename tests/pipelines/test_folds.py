"""Folds of the training classes."""

import dataclasses

import numpy as np
import pytest

from pipelines import ImageTable, split_by_class, training_fold
from pipelines.split import Split


def whole(classes=10, **arguments):
    """Return images whose pixels are their row number, two of each class."""
    images = np.arange(2 * classes, dtype="float32")[:, None]
    names = tuple(f"class {number}" for number in range(classes))
    table = ImageTable(np.repeat(np.arange(classes), 2), names, arrays=images)
    return split_by_class(table, **arguments)


def rows(table):
    return set(np.asarray(table.arrays).ravel().astype(int))


@pytest.mark.parametrize("folds", [2, 3, 5])
def test_folds_partition_the_training_classes(folds):
    split = whole()
    found = [training_fold(split, fold, folds) for fold in range(1, folds + 1)]
    measured = [set(each.test.class_names) for each in found]
    assert sum(map(len, measured)) == len(set.union(*measured)) == split.train.num_classes
    assert max(map(len, measured)) - min(map(len, measured)) <= 1
    for each in found:
        assert not set(each.train.class_names) & set(each.test.class_names)
        assert rows(each.train) | rows(each.test) == rows(split.train)
        assert not (rows(each.train) | rows(each.test)) & rows(split.test)
        assert not each.same_classes


def test_fold_has_no_gallery_catalog_or_known_classes():
    split = whole(split="within_classes")
    catalog = split.test
    split = Split(split.train, split.test, same_classes=True, gallery=split.test, catalog=catalog)
    fold = training_fold(dataclasses.replace(split, training_catalog=catalog), 1, 2)
    assert set(fold.tables) == {"training", "test"}
    assert fold.training_catalog.class_names == fold.train.class_names
    assert rows(fold.train) | rows(fold.test) == rows(split.train)


@pytest.mark.parametrize(
    ("fold", "folds", "message"),
    [
        (1, 6, "folds must be at most 5, the number of training classes.* but got 6"),
        (3, 2, "fold must be at most folds=2, but got 3"),
    ],
)
def test_invalid_fold_is_refused(fold, folds, message):
    with pytest.raises((ValueError, TypeError), match=message):
        training_fold(whole(), fold, folds)
