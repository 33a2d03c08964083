"""Copies of files and folders that follow no links, because a copy can be published."""

import pathlib
import shutil
from collections.abc import Iterable

from keras_dml._common.errors import ArgumentError


def copy_files(folder: pathlib.Path, names: Iterable[str], target: pathlib.Path) -> None:
    """Copy files of a folder to the same places in another folder.

    Args:
        folder: The folder.
        names: Relative paths, such as `names_of_files`.
        target: The other folder. Missing folders are created.

    Raises:
        ValueError: As for `check_files`.
    """
    for name in names:
        check_files(folder, [name])  # with the folders on its path
        copied = target / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, copied)


def copy_file(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copy a file.

    Raises:
        ValueError: As for `check_files`.
    """
    check_files(source.parent, [source.name])
    shutil.copyfile(source, target)


def check_files(folder: pathlib.Path, names: Iterable[str]) -> None:
    """Check that files can be copied.

    Raises:
        ValueError: A file, or a folder on its path, is a link. Or a file is missing or special.
    """
    for name in names:
        path = folder
        for part in pathlib.PurePath(name).parts:
            path /= part
            if path.is_symlink():
                raise ArgumentError(
                    f"A copied file must not be a link, but got {path}. Replace the link with the "
                    "file."
                )
        if not path.is_file():
            raise ArgumentError(f"A copied file must be a regular file, but got {path}.")


def names_of_files(folder: pathlib.Path) -> list[str]:
    """Return the relative paths of everything in a folder, except for its subfolders."""
    paths = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    return [path.relative_to(folder).as_posix() for path in paths]
