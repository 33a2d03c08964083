"""Shared checks of the datasets: their arguments, their folder, and its contents."""

import logging
import os
from collections.abc import Iterable, Sequence

import numpy as np

from keras_dml._common.errors import ArgumentError, argument_error
from pipelines.split import Split
from pipelines.table import ImageTable, repeated_images

LOGGER = logging.getLogger("pipelines")


class MissingDataError(ArgumentError):
    """A dataset whose files are not in `data_dir`."""


def checked_data_dir(data_dir: str | os.PathLike[str] | None, expected: str) -> str:
    """Return `data_dir` as a string, with `~` expanded.

    Args:
        data_dir: Folder of the dataset.
        expected: End of the message: the expected layout, and where to get a published dataset.

    Raises:
        ValueError: `data_dir` is not a folder, or it is empty.
    """
    if data_dir is None or not os.fspath(data_dir):
        raise argument_error("data_dir", "set", data_dir, MissingDataError, advice=expected)
    folder = os.path.expanduser(os.fspath(data_dir))
    try:
        entries = os.listdir(folder)
    except OSError as error:
        advice = f"{error.strerror}. {expected}"
        wanted = "a readable folder"
        raise argument_error("data_dir", wanted, folder, MissingDataError, advice=advice) from error
    if not entries:
        wanted = "a folder that is not empty"
        raise argument_error("data_dir", wanted, folder, MissingDataError, advice=expected)
    return folder


def check_not_given(dataset: str, reason: str, **arguments: object) -> None:
    """Raise `ValueError` if an argument is set that the dataset does not accept."""
    for name, value in arguments.items():
        if value not in (None, ""):
            raise ArgumentError(
                f"{name} must not be set with {dataset}, which {reason}, but got {value}."
            )


def dataset_root(
    data_dir: str | os.PathLike[str] | None,
    archive_folders: str | Sequence[str],
    needed: Sequence[str],
    expected: str,
) -> str:
    """Return the folder of a published dataset: `data_dir`, or one of `archive_folders` in it.

    Raises:
        ValueError: As for `checked_data_dir`. Also if one of the `needed` names is missing.
    """
    given = checked_data_dir(data_dir, expected)
    inner = [archive_folders] if isinstance(archive_folders, str) else archive_folders
    root = folder_with(needed[:1], given, inner)
    for name in needed:
        if not os.path.exists(os.path.join(root, name)):
            raise missing_file_error(data_dir, name, expected)
    return root


def folder_with(names: Sequence[str], parent: str, children: Sequence[str]) -> str:
    """Return the first of a folder and its `children` that has one of the names, or the folder."""
    roots = [parent, *(os.path.join(parent, child) for child in children)]
    for root in roots:
        if any(os.path.exists(os.path.join(root, name)) for name in names):
            return root
    return parent


def missing_file_error(data_dir: object, name: str, expected: str) -> ArgumentError:
    """Return the error for a file or folder that a dataset needs and that is missing."""
    return MissingDataError(
        f"data_dir must contain {name}, but got {data_dir} without it. {expected}"
    )


def warn_of_other_counts(
    where: str, table: ImageTable, full_name: str, images: int, classes: int
) -> None:
    """Warn if the numbers of images and classes differ from the full dataset."""
    found = len(np.unique(table.labels))
    if (len(table), found) != (images, classes):
        LOGGER.warning(
            "%s: found %d images of %d classes; the full %s has %d of %d",
            where,
            len(table),
            found,
            full_name,
            images,
            classes,
        )


def check_one_class(
    where: str, paths: Iterable[str], labels: Sequence[object] | np.ndarray
) -> None:
    """Check that each image file has one class, and warn about repeated rows.

    Args:
        where: Path of the list, for messages.
        paths, labels: Path and class of each row.

    Raises:
        ValueError: A file has two classes, so two equal pictures would be a negative pair.
    """
    several, repeated = repeated_images([os.path.normpath(path) for path in paths], labels)
    if several:
        raise ArgumentError(
            f"{where} must list each image under one class, but got {len(several)} images with "
            f"two or more. The first: {several[0]}"
        )
    if repeated:
        LOGGER.warning(
            "%s: %d images have more than one row. The first: %s",
            where, len(repeated), repeated[0],
        )  # fmt: skip


def check_separate(split: Split) -> None:
    """Raise `ValueError` if an image file is in training and test."""
    if split.train.paths is None:
        return
    trained = set(map(os.path.normpath, split.train.paths.tolist()))
    for side in (split.test, split.gallery):
        if side is None or side.paths is None:
            continue
        both = trained.intersection(map(os.path.normpath, side.paths.tolist()))
        if both:
            raise ArgumentError(
                "data_dir must not have an image in both training and test, but got "
                f"{len(both)}. The first: {min(both)}"
            )
