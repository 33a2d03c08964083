"""The images in and below a folder, by their paths relative to it."""

import collections
import os
import pathlib
from typing import NamedTuple

from experiments.options.errors import RunError, UsageError
from pipelines.datasets.files import LOGGER
from pipelines.datasets.folder import EXTENSIONS, unread_line, walk_images


class ImageFile(NamedTuple):
    """An image file: its path from the folder, with forward slashes; bytes; time in ns."""

    path: str
    size: int
    time: int


def list_images(folder: str | os.PathLike[str]) -> list[ImageFile]:
    """All images of a folder, nested as they like, in the order of their paths; opens none.

    File types, linked folders and hidden files are treated as `pipelines.load_dataset("folder")`
    treats them; here an image needs no class folder.

    Args:
        folder: path.

    Returns:
        List of `ImageFile`. The size and time of a link whose file is gone are 0.

    Raises:
        ValueError: no such folder, one that cannot be read, or no image in it.
    """
    root = os.fspath(folder)
    if not os.path.isdir(root):
        raise UsageError(f"images must be a folder. Received: images={root}")
    unread: collections.Counter[str] = collections.Counter()
    found = [
        _image_file(root, os.path.join(path, name))
        for path, names in walk_images(root, unread)
        for name in names
    ]
    return settled(root, found, unread)


def settled(root: str, found: list[ImageFile], unread: collections.Counter[str]) -> list[ImageFile]:
    """The images that a folder holds, in order; says how many it holds that are not read.

    Raises:
        UsageError: no image.
    """
    if found and unread:
        LOGGER.warning("%s: %s", root, unread_line(unread))
    if not found:
        others = f", but {unread_line(unread)}" if unread else ""
        raise UsageError(
            f"images must be a folder with {', '.join(EXTENSIONS)} files in it or below. "
            f"Received: images={root}, which holds none{others}"
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
    """Where the image `name` of an index lies: a path inside the folder, whatever the name says.

    Raises:
        ValueError: the name leads out of the folder, or is no image's.
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
