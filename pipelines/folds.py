"""Folds of the training classes, to choose settings by without the test classes."""

import dataclasses

import numpy as np

from keras_dml._common.checks import check_whole
from keras_dml._common.errors import ArgumentError
from pipelines.split import Split


def training_fold(split: Split, fold: int, folds: int) -> Split:
    """The training classes alone, one part of them kept back to measure on.

    The parts are class-disjoint, follow the order of the classes and differ in size by one class
    at most: a function of the numbers alone. The split's own test images, gallery and catalog are
    not in what is returned, so that nothing chosen by it has seen them.

    Args:
        split: of a dataset.
        fold: which part is measured on, from 1.
        folds: how many parts there are, 2 or more.

    Returns:
        A `Split` whose classes all are training classes of the given one: `train` those of the
        other parts, `test` those of part `fold`.

    Raises:
        TypeError: `fold` or `folds` is no whole number.
        ValueError: there is no such part, or there are fewer training classes than parts.

    Reference: Musgrave et al. 2020, "A Metric Learning Reality Check", where four such parts divide
    the training classes.

    Examples:

        table = pipelines.ImageTable.from_arrays(np.zeros((80, 8)), np.arange(80) // 4)
        whole = pipelines.split_by_class(table)  # 10 classes train, 10 test
        first = training_fold(whole, 1, 4)  # 7 of the 10 train, 3 test
    """
    folds = check_whole("folds", folds, least=2)
    fold = check_whole("fold", fold, least=1)
    if fold > folds:
        raise ArgumentError(f"fold must be at most folds={folds}. Received: fold={fold}")
    table = split.train
    if table.num_classes < folds:
        raise ArgumentError(
            f"folds must be at most {table.num_classes}, the training classes, which they divide. "
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
