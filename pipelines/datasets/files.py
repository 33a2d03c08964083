"""What datasets share: which arguments they take, the folder they lie in, what it should hold."""

import logging
import os
from collections.abc import Sequence

import numpy as np

from keras_dml._common.errors import ArgumentError
from pipelines.table import ImageTable

LOGGER = logging.getLogger("pipelines")


def checked_data_dir(data_dir: str | os.PathLike[str] | None, expected: str) -> str:
    """Returns `data_dir` as a string, with `~` expanded.

    Raises ValueError unless it is a folder with something in it. `expected` is the end of the
    message: which layout is expected and, for a published dataset, where to get it.
    """
    if data_dir is None or not os.fspath(data_dir):
        raise ArgumentError(f"data_dir must be given. {expected} Received: data_dir={data_dir!r}")
    folder = os.path.expanduser(os.fspath(data_dir))
    try:
        entries = os.listdir(folder)
    except OSError as error:
        raise ArgumentError(
            f"data_dir cannot be read as a folder ({error.strerror}). {expected} "
            f"Received: data_dir={folder}"
        ) from error
    if not entries:
        raise ArgumentError(f"data_dir is an empty folder. {expected} Received: data_dir={folder}")
    return folder


def check_not_given(dataset: str, reason: str, **arguments: object) -> None:
    """ValueError if one of these arguments was given to a dataset that does not take it."""
    for name, value in arguments.items():
        if value not in (None, ""):
            raise ArgumentError(
                f"{name} must not be given with {dataset}, which {reason}. Received: {name}={value}"
            )


def dataset_root(
    data_dir: str | os.PathLike[str] | None,
    archive_folders: str | Sequence[str],
    needed: Sequence[str],
    expected: str,
) -> str:
    """The folder that holds a published dataset: `data_dir`, or one of `archive_folders` in it.

    Raises ValueError as `checked_data_dir`, and when one of the `needed` names is not in it.
    """
    given = checked_data_dir(data_dir, expected)
    inner = [archive_folders] if isinstance(archive_folders, str) else archive_folders
    roots = [given, *(os.path.join(given, folder) for folder in inner)]
    root = next((one for one in roots if os.path.exists(os.path.join(one, needed[0]))), roots[-1])
    for name in needed:
        if not os.path.exists(os.path.join(root, name)):
            raise ArgumentError(
                f"data_dir holds no {name}. {expected} Received: data_dir={data_dir}"
            )
    return root


def warn_of_other_counts(
    where: str, table: ImageTable, full_name: str, images: int, classes: int
) -> None:
    """One warning with both numbers unless the table has those of the full dataset."""
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
