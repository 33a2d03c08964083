"""The images of an index: a folder on this machine, or an address that Arrow reads."""

from __future__ import annotations

import collections
import os
import pathlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from experiments.options.errors import RunError, UsageError
from pipelines.datasets import folder
from pipelines.datasets.files import LOGGER
from pipelines.image_files import most_bytes, read_image
from pipelines.max_pixels import MOST_PIXELS

if TYPE_CHECKING:
    from experiments.evaluation.saved_model import ImageEmbedder


class ImageFile(NamedTuple):
    """An image file: its path from the folder with forward slashes, size, and time in ns."""

    path: str
    size: int
    time: int


class ImageFolder:
    """A folder of images.

    Args:
        place: A path, or an address such as s3://BUCKET/FOLDER.

    Attributes:
        place: The path or address.
        name: The name of the folder.
        left_out: Reasons why listed images are left out, by path from the folder.

    Raises:
        MissingExtraError: Arrow is not installed, and `place` is an address.
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.place = os.fspath(place)
        self.name = os.path.basename(self.place.rstrip("/"))
        self.left_out: dict[str, str] = {}
        self._remote = None
        if "://" in self.place:
            from experiments.searching.file_systems import opened_folder

            self._remote = opened_folder(self.place)

    def exists(self) -> bool:
        """Return whether the folder exists."""
        return self._remote.exists() if self._remote else os.path.isdir(self.place)

    def files(self) -> list[ImageFile]:
        """List all images in the folder and its subfolders, sorted by path. Opens no image.

        File types, linked folders, and hidden files are treated as in
        `pipelines.load_dataset("folder")`, but an image needs no class folder. The size and time of
        a broken link are 0.

        Raises:
            UsageError: The folder is missing, unreadable, or without images.
        """
        unread: collections.Counter[str] = collections.Counter()
        left_out: dict[str, str] = {}
        if self._remote:
            listed = list(self._remote.files((*folder.EXTENSIONS, *folder.UNREAD)))
            unread.update(folder.unread_endings(path for path, *_ in listed))
            found = [
                ImageFile(*file) for file in listed if file[0].lower().endswith(folder.EXTENSIONS)
            ]
        elif self.exists():
            found = [
                _image_file(self.place, os.path.join(path, name))
                for path, names in folder.walk_images(self.place, unread, left_out)
                for name in names
            ]
        else:
            raise UsageError(f"images must be a folder, but got {self.place}.")
        folder.warn_of_left_out(self.place, left_out)
        self.left_out = {
            os.path.relpath(path, self.place): reason for path, reason in left_out.items()
        }
        if found and unread:
            LOGGER.warning("%s: %s", self.place, folder.unread_line(unread))
        if not found:
            others = f", but {folder.unread_line(unread)}" if unread else ""
            raise UsageError(
                f"images must be a folder with {', '.join(folder.EXTENSIONS)} files, but got "
                f"images={self.place}, which holds none{others}."
            )
        return sorted(found)

    def check_not_gone(self) -> None:
        """Raise `RunError` if the folder of listed images is missing, unreadable, or empty.

        The mount point of a lost drive is an empty folder.
        """
        try:
            gone = not (self._remote.exists() if self._remote else os.listdir(self.place))
        except OSError:
            gone = True
        if gone:
            raise RunError(
                f"the folder of the images is gone: {self.place}. Once it is back, the same "
                "command continues where it stopped"
            )

    def path(self, name: str) -> pathlib.Path:
        """Return the path of an image, which must be inside the folder.

        Raises:
            UsageError: The name leads out of the folder, or is not the name of an image.
        """
        parts = pathlib.PurePosixPath(name).parts
        inside = parts and not os.path.isabs(name) and ".." not in parts and "\0" not in name
        if not inside or not name.lower().endswith(folder.EXTENSIONS):
            raise UsageError(f"An image must have a path inside the folder, but got {name!r}.")
        return pathlib.Path(self.place, *parts)

    def read(self, name: str, max_pixels: int = MOST_PIXELS) -> bytes:
        """Read an image.

        Raises:
            UsageError: The name is not one of an image in the folder.
            OSError: The file cannot be read, or is too large for an image of `max_pixels`.
        """
        path = self.path(name)
        if self._remote:
            return self._remote.read(name, most_bytes(max_pixels))
        return read_image(path, max_pixels)

    def read_checked(self, name: str, max_pixels: int) -> bytes | str:
        """Return the contents of an image file, or the reason why it cannot be embedded.

        Raises:
            RunError: The folder has disappeared.
        """
        from experiments.pages.pictures import checked_picture

        try:
            encoded = self.read(name, max_pixels)
            return checked_picture(encoded, max_pixels) if encoded else "the file is empty"
        except OSError as error:
            self.check_not_gone()
            return str(error.strerror or error)
        except ValueError as error:
            return str(error)


def images_of_index(
    index: object, images: str | os.PathLike[str] | None, named: str
) -> ImageFolder:
    """Return the images of an index: where the command line says, or where the index says.

    Args:
        index: The index, for the message.
        images: The folder or address on the command line, or None.
        named: The folder or address in the index.

    Raises:
        UsageError: Only the index names an address. It can come from a stranger, and opening its
            address sends the user's credentials to the server that the address names.
    """
    if images is None and "://" in named:
        raise UsageError(
            f"the index in {index} names an address for its images, which is opened only if the "
            f"command line sets it: --images={named.partition('?')[0]}"
        )
    return ImageFolder(images or named)


def embed_batch(
    embedder: ImageEmbedder, read: Iterable[bytes | str]
) -> tuple[np.ndarray, dict[int, str]]:
    """Embed a batch.

    Args:
        embedder: The model.
        read: Results of `ImageFolder.read_checked`.

    Returns:
        The embeddings, with zeros for bad images, and the reasons of bad images by row.
    """
    contents = list(read)
    reasons = {row: each for row, each in enumerate(contents) if isinstance(each, str)}
    images = {row: each for row, each in enumerate(contents) if isinstance(each, bytes)}
    embeddings = np.zeros((len(contents), embedder.dimensions), np.float32)
    if images:
        rows = list(images)
        embeddings[rows], refused = embedder(list(images.values()))
        reasons |= {rows[place]: reason for place, reason in refused.items()}
    return embeddings, reasons


def _image_file(root: str, path: str) -> ImageFile:
    name = os.path.relpath(path, root).replace(os.sep, "/")
    try:
        status = os.stat(path)
    except OSError:
        return ImageFile(name, 0, 0)
    return ImageFile(name, status.st_size, status.st_mtime_ns)
