"""Folds of the training classes, to choose settings without the test classes."""

import dataclasses

import numpy as np

from keras_dml._common.checks import check_whole
from keras_dml._common.errors import ArgumentError
from pipelines.split import Split


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
        raise ArgumentError(f"fold must be at most folds={folds}. Received: fold={fold}")
    table = split.train
    if table.num_classes < folds:
        raise ArgumentError(
            f"folds must be at most {table.num_classes}, the number of training classes. "
            f"Received: folds={folds}"
        )
    parts = np.array_split(np.arange(table.num_classes), folds)
    kept_back = parts.pop(fold - 1)
    return dataclasses.replace(
        split,
        train=table.select_classes(np.concatenate(parts)),
        test=table.select_classes(kept_back),
        same_classes=False,
        gallery=None,
        catalog=None,
    )
