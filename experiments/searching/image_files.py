"""The images in and below a folder, by their paths relative to it."""

import collections
import os
import pathlib
from typing import NamedTuple

from experiments.options.errors import RunError, UsageError
from pipelines.datasets.files import LOGGER
from pipelines.datasets.folder import (
    EXTENSIONS,
    UNREAD,
    unread_endings,
    unread_line,
    walk_images,
)


class ImageFile(NamedTuple):
    """An image file: its path from the folder with forward slashes, size, and time in ns."""

    path: str
    size: int
    time: int


def list_images(place: str | os.PathLike[str]) -> list[ImageFile]:
    """List all images in a folder and its subfolders, sorted by path. Opens no image.

    File types, linked folders, and hidden files are treated as `pipelines.load_dataset("folder")`
    treats them, but an image needs no class folder.

    Args:
        place: a folder, or an address that Arrow reads.

    Returns:
        List of `ImageFile`. The size and time of a broken link are 0.

    Raises:
        UsageError: if the folder is missing, unreadable, or without images.
    """
    root = os.fspath(place)
    unread: collections.Counter[str] = collections.Counter()
    if "://" in root:
        from experiments.searching.file_systems import opened_folder

        listed = list(opened_folder(root).files((*EXTENSIONS, *UNREAD)))
        unread.update(unread_endings(path for path, *_ in listed))
        found = [ImageFile(*file) for file in listed if file[0].lower().endswith(EXTENSIONS)]
    elif os.path.isdir(root):
        found = [
            _image_file(root, os.path.join(path, name))
            for path, names in walk_images(root, unread)
            for name in names
        ]
    else:
        raise UsageError(f"images must be a folder, but got images={root}.")
    if found and unread:
        LOGGER.warning("%s: %s", root, unread_line(unread))
    if not found:
        others = f", but {unread_line(unread)}" if unread else ""
        raise UsageError(
            f"images must be a folder with {', '.join(EXTENSIONS)} files, but got images={root}, "
            f"which holds none{others}."
        )
    return sorted(found)


def check_not_gone(folder: str | os.PathLike[str]) -> None:
    """Raise `RunError` if a folder of listed images is missing, unreadable, or empty.

    The mount point of a lost drive is an empty folder.
    """
    try:
        with os.scandir(folder) as entries:
            if next(entries, None) is not None:
                return
    except OSError:
        pass
    raise folder_is_gone(os.fspath(folder))


def folder_is_gone(place: str) -> RunError:
    """The error for a folder that disappeared while its images were read."""
    return RunError(
        f"the folder of the images is gone: {place}. Once it is back, the same command continues "
        "where it stopped"
    )


def image_path(folder: str | os.PathLike[str], name: str) -> pathlib.Path:
    """Return the path of an image, which must be inside the folder.

    Raises:
        UsageError: if the name leads out of the folder, or is not an image name.
    """
    parts = pathlib.PurePosixPath(name).parts
    inside = parts and not os.path.isabs(name) and ".." not in parts and "\0" not in name
    if not inside or not name.lower().endswith(EXTENSIONS):
        raise UsageError(f"An image's name must be a path inside the folder. Received: {name!r}")
    return pathlib.Path(folder, *parts)


def _image_file(root: str, path: str) -> ImageFile:
    name = os.path.relpath(path, root).replace(os.sep, "/")
    try:
        status = os.stat(path)
    except OSError:
        return ImageFile(name, 0, 0)
    return ImageFile(name, status.st_size, status.st_mtime_ns)
