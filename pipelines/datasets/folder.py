"""Any folder of images with one folder a class."""

import collections
import os
import stat
from collections.abc import Iterable, Iterator
from typing import NoReturn

from keras_dml._common.errors import ArgumentError
from pipelines.datasets.files import LOGGER, checked_data_dir
from pipelines.split import Split, split_by_class
from pipelines.table import ImageTable

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")
"""What counts as an image, in any case."""

UNREAD = (
    ".heic", ".heif", ".avif", ".tif", ".tiff", ".jfif", ".jp2", ".jxl", ".svg", ".psd", ".raw",
    ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf",
)  # fmt: skip
"""Endings of images, in any case, that are told from other files but not read."""

EXPECTED = (
    "Expected one folder a class, data_dir/class/image.jpg (nested folders: the path is the "
    f"class), with {', '.join(EXTENSIONS)} files."
)


def load_split(
    data_dir: str | os.PathLike[str] | None,
    train_classes: int | None = None,
    test_classes: int | None = None,
    split: str = "first_classes",
    seed: int = 0,
) -> Split:
    """One folder a class; the first classes train, the next ones test, half of them by default."""
    return split_by_class(folder(data_dir), train_classes, test_classes, None, split, seed)


def folder(data_dir: str | os.PathLike[str] | None) -> ImageTable:
    """Reads the names of the images in a folder of class folders; opens no image.

    The class of an image is the path of its folder relative to `data_dir`, with forward slashes.
    Classes are in sorted order, and so are the files of a class. Linked folders are followed.
    Hidden files and folders, `__MACOSX` and files that are no images are passed over; of images of
    formats that are not read, such as HEIC, one warning says how many there are. Images lying in
    `data_dir` itself have no class: they are left out, with one warning. So is, each with its own,
    what only looks like an image: a pipe or device (reading one would wait for ever), and a name
    that is no UTF-8 (TensorFlow takes no other).

    Raises:
        ValueError: when `data_dir` is missing or empty, cannot be read, or has no class folder
            with images.
    """
    root = checked_data_dir(data_dir, EXPECTED)
    files_of = {}
    unread: collections.Counter[str] = collections.Counter()
    for path, images in walk_images(root, unread):
        files_of[os.path.relpath(path, root).replace(os.sep, "/")] = images
    without_class = files_of.pop(".", [])
    if not files_of:
        found = f"{len(without_class)} images lie in it directly" if without_class else "no image"
        found += f", and {unread_line(unread)}" if unread else ""
        raise ArgumentError(
            f"data_dir has no class folder with images: found {found}. {EXPECTED} "
            f"Received: data_dir={root}"
        )
    if unread:
        LOGGER.warning("%s: %s", root, unread_line(unread))
    if without_class:
        LOGGER.warning(
            "%s: left out %d images that lie in no class folder, the first is %s",
            root,
            len(without_class),
            without_class[0],
        )
    classes = sorted(files_of)
    paths = [os.path.join(root, name, file) for name in classes for file in files_of[name]]
    labels = [name for name in classes for _ in files_of[name]]
    return ImageTable.from_paths(paths, labels)


def walk_images(
    root: str, unread: collections.Counter[str] | None = None
) -> Iterator[tuple[str, list[str]]]:
    """Yields (folder, its images' names in sorted order) for `root` and what lies below it.

    Folders without images are left out. Links and hidden files as in `folder`.

    Args:
        root: the folder.
        unread: where the images are counted that are of formats which are not read.

    Raises:
        ValueError: a folder cannot be read.
    """
    for path, folders, files in os.walk(root, onerror=_unreadable, followlinks=True):
        folders[:] = [name for name in folders if _is_shown(name) and not _is_loop(path, name)]
        files = [name for name in files if _is_shown(name)]
        if unread is not None:
            unread.update(unread_endings(files))
        images = sorted(name for name in files if name.lower().endswith(EXTENSIONS))
        images = [name for name in images if _can_be_read(os.path.join(path, name))]
        if images:
            yield path, images


def unread_endings(names: Iterable[str]) -> list[str]:
    """Of those names that are of images in formats which are not read, the endings."""
    endings = (os.path.splitext(name)[1].lower() for name in names)
    return [ending for ending in endings if ending in UNREAD]


def unread_line(unread: collections.Counter[str]) -> str:
    """What is said of images that are not read, and what to do."""
    count = sum(unread.values())
    kinds = ", ".join(f"{number:,} {ending}" for ending, number in unread.most_common())
    files = "file is" if count == 1 else "files are"
    return f"{count:,} {files} not read: {kinds}; convert {'it' if count == 1 else 'them'} to JPEG"


def _is_shown(name: str) -> bool:
    return not name.startswith(".") and name != "__MACOSX"


def _can_be_read(path: str) -> bool:
    """Whether reading it ends, and whether TensorFlow can name it; says what cannot."""
    try:
        special = not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:  # a link whose file is gone, say: found where the images are looked at
        special = False
    try:
        path.encode()
    except UnicodeEncodeError:
        LOGGER.warning("left out: %s, whose name is no UTF-8", ascii(path))
        return False
    if special:
        LOGGER.warning("left out: %s, which is no regular file", path)
    return not special


def _is_loop(path: str, name: str) -> bool:
    """Whether a folder is a link to one that holds it, where following would never end."""
    link = os.path.join(path, name)
    if not os.path.islink(link):
        return False
    target = os.path.join(os.path.realpath(link), "")
    return os.path.join(os.path.realpath(path), "").startswith(target)


def _unreadable(error: OSError) -> NoReturn:
    raise ArgumentError(
        f"A folder of images cannot be read ({error.strerror}): {error.filename}"
    ) from error
