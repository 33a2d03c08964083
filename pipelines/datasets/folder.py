"""A folder of images with one subfolder for each class."""

import collections
import dataclasses
import os
import stat
from collections.abc import Iterable, Iterator
from typing import NoReturn

import numpy as np

from keras_dml._common.errors import ArgumentError
from pipelines import heic
from pipelines.datasets.files import LOGGER, checked_data_dir
from pipelines.split import Unsplit
from pipelines.table import ImageTable

EXTENSIONS: tuple[str, ...] = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")
"""Extensions of images, in upper or lower case. They include HEIC if pillow-heif is installed."""
if heic.can_be_read():
    EXTENSIONS += heic.EXTENSIONS

UNREAD = (
    *heic.EXTENSIONS, ".avif", ".tif", ".tiff", ".jfif", ".jp2", ".jxl", ".svg", ".psd", ".raw",
    ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf",
)  # fmt: skip
"""Extensions of images in unsupported formats, in upper or lower case."""

_NAMED = 3  # names in a warning

EXPECTED = (
    "Expected one folder per class, data_dir/class/image.jpg (in nested folders, the path is the "
    f"class), with {', '.join(EXTENSIONS)} files."
)


def load(data_dir: str | os.PathLike[str] | None) -> Unsplit:
    """One subfolder per class. By default, the first half of the classes is for training."""
    table = folder(data_dir)
    return Unsplit(
        table,
        of_one_class=(
            "data_dir must have at least 2 class folders, because half of the classes test, but "
            f"got only {table.class_names[0]!r} in {os.fspath(data_dir or '')!r}. To test on other "
            "images of the same classes: split='within_classes' (--class_split=within_classes)."
        ),
    )


def folder(data_dir: str | os.PathLike[str] | None) -> ImageTable:
    """List the images in a folder of class folders. No image is opened.

    The class of an image is the path of its folder relative to `data_dir`, with forward slashes.
    If all class folders are nested, the first folder of the path is the coarse class.
    Classes and the files of a class are in sorted order. Links to folders are followed. Hidden
    files and folders, `__MACOSX`, and files that are not images are ignored. These files cause a
    warning and are left out:

    - images in unsupported formats, such as TIFF, or HEIC without the package pillow-heif (one
      warning with their number)
    - images directly in `data_dir`, which have no class (one warning)
    - pipes and devices with the name of an image, on which a read can block forever (one warning)
    - file names that are not UTF-8, which TensorFlow does not accept (one warning)

    Raises:
        ValueError: `data_dir` is missing or empty, cannot be read, or has no class folder with
            images.
    """
    root = checked_data_dir(data_dir, EXPECTED)
    files_of = {}
    unread: collections.Counter[str] = collections.Counter()
    left_out: dict[str, str] = {}
    for path, images in walk_images(root, unread, left_out):
        files_of[os.path.relpath(path, root).replace(os.sep, "/")] = images
    warn_of_left_out(root, left_out)
    without_class = files_of.pop(".", [])
    if not files_of:
        found = f"{len(without_class)} images without a class folder" if without_class else "none"
        found += f", and {unread_line(unread)}" if unread else ""
        raise ArgumentError(
            f"data_dir must have class folders with images, but got {found} in {root}. {EXPECTED}"
        )
    if unread:
        LOGGER.warning("%s: %s", root, unread_line(unread))
    if without_class:
        LOGGER.warning(
            "%s: left out %d images that are not in a class folder, the first is %s",
            root,
            len(without_class),
            without_class[0],
        )
    classes = sorted(files_of)
    paths = [os.path.join(root, name, file) for name in classes for file in files_of[name]]
    labels = [name for name in classes for _ in files_of[name]]
    table = ImageTable.from_paths(paths, labels)
    if not all("/" in name for name in classes):
        return table
    coarse = np.unique([name.split("/")[0] for name in classes], return_inverse=True)[1]
    return dataclasses.replace(table, coarse_ids=coarse)


def walk_images(
    root: str, unread: collections.Counter[str], left_out: dict[str, str]
) -> Iterator[tuple[str, list[str]]]:
    """Yield (folder, sorted names of its images) for `root` and all folders in it.

    Folders without images are left out. Links and hidden files are handled as in `folder`.

    Args:
        root: The folder.
        unread: Counter of images in unsupported formats, by extension.
        left_out: Gets the path of each other image that is left out, and the reason.

    Raises:
        ValueError: A folder cannot be read.
    """
    for path, folders, files in os.walk(root, onerror=_unreadable, followlinks=True):
        folders[:] = [name for name in folders if _is_shown(name) and not _is_loop(path, name)]
        files = [name for name in files if _is_shown(name)]
        unread.update(unread_endings(files))
        images = []
        for name in sorted(name for name in files if name.lower().endswith(EXTENSIONS)):
            reason = _why_left_out(os.path.join(path, name))
            if reason is None:
                images.append(name)
            else:
                left_out[os.path.join(path, name)] = reason
        if images:
            yield path, images


def warn_of_left_out(root: str, left_out: dict[str, str]) -> None:
    """Warn once for each reason, with the number of files and the first three names."""
    for reason in dict.fromkeys(left_out.values()):
        paths = [path for path, of_path in left_out.items() if of_path == reason]
        names = ", ".join(ascii(os.path.relpath(path, root)) for path in paths[:_NAMED])
        more = ", …" if len(paths) > _NAMED else ""
        files = "1 file" if len(paths) == 1 else f"{len(paths):,} files"
        LOGGER.warning("%s: left out %s, %s: %s%s", root, files, reason, names, more)


def unread_endings(names: Iterable[str]) -> list[str]:
    """Return the extensions of the names that are images in unsupported formats."""
    endings = (os.path.splitext(name)[1].lower() for name in names)
    return [ending for ending in endings if ending in UNREAD and ending not in EXTENSIONS]


def unread_line(unread: collections.Counter[str]) -> str:
    """Return the message about images in unsupported formats."""
    count = sum(unread.values())
    kinds = ", ".join(f"{number:,} {ending}" for ending, number in unread.most_common())
    files, them = ("file is", "it") if count == 1 else ("files are", "them")
    package = ""
    if any(ending in heic.EXTENSIONS for ending in unread):
        package = ", or install the package pillow-heif, which reads HEIC"
    return f"{count:,} {files} not read: {kinds}; convert {them} to JPEG{package}"


def _is_shown(name: str) -> bool:
    return not name.startswith(".") and name != "__MACOSX"


def _why_left_out(path: str) -> str | None:
    """Return None for a regular file with a UTF-8 name, or the reason."""
    try:
        special = not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:  # for example, a broken link, which the check of the images reports
        special = False
    try:
        path.encode()
    except UnicodeEncodeError:
        return "the name is not UTF-8"
    return "not a regular file" if special else None


def _is_loop(path: str, name: str) -> bool:
    """Return whether a folder is a link to one of its parents."""
    link = os.path.join(path, name)
    if not os.path.islink(link):
        return False
    target = os.path.join(os.path.realpath(link), "")
    return os.path.join(os.path.realpath(path), "").startswith(target)


def _unreadable(error: OSError) -> NoReturn:
    raise ArgumentError(
        f"data_dir must contain only readable folders, but got {error.filename} ({error.strerror})."
    ) from error
