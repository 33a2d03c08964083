"""The folder of an index's images, on any file system."""

from __future__ import annotations

import os
import pathlib
import urllib.parse
from typing import TYPE_CHECKING

from experiments.options.errors import UsageError
from experiments.searching.image_files import check_not_gone, folder_is_gone, image_path

if TYPE_CHECKING:
    from experiments.searching.file_systems import Folder

__all__ = ["ImageFolder", "check_stored"]

# Parameters of an address that do not choose the server.
_HARMLESS = {"region"}


def check_stored(place: str, index: object) -> None:
    """Refuse an address that an index names as its images' folder.

    An index can come from a stranger. Opening its address sends the user's credentials to a server
    that the stranger chooses.

    Args:
        place: the folder or address.
        index: the index, for the message.

    Raises:
        UsageError: if `place` is an address.
    """
    if "://" not in place:
        return
    asked = urllib.parse.parse_qs(place.partition("?")[2], keep_blank_values=True)
    chosen = [name for name in asked if name not in _HARMLESS]
    # An address that could mislead is not printed as a flag to copy.
    how = f"--images={place}"
    if chosen:
        how = (
            f"give --images=ADDRESS. The stored address is refused: its parameters "
            f"{', '.join(chosen)} can send your credentials to another server"
        )
    raise UsageError(
        f"the index in {index} names an address for its images, which is opened only if the "
        f"command line gives it: {how}"
    )


class ImageFolder:
    """The images' folder of an index.

    Args:
        place: a path, or an address such as s3://BUCKET/FOLDER.

    Attributes:
        place: the path or address.
        name: the name of the folder.

    Raises:
        UsageError: if the folder is missing.
        MissingExtraError: for an address without Arrow.
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.place = os.fspath(place)
        self.name = os.path.basename(self.place.rstrip("/"))
        self._elsewhere: Folder | None = None
        if "://" in self.place:
            from experiments.searching.file_systems import opened_folder

            self._elsewhere = opened_folder(self.place)
        is_there = self._elsewhere.is_there() if self._elsewhere else os.path.isdir(self.place)
        if not is_there:
            raise UsageError(
                f"the folder of the index's images is gone: {self.place}. Give --images=FOLDER, "
                "where it is now"
            )

    def check_not_gone(self) -> None:
        """Raise `RunError` if the folder has disappeared."""
        if self._elsewhere is None:
            check_not_gone(self.place)
        elif not self._elsewhere.is_there():
            raise folder_is_gone(self.place)

    def read(self, name: str) -> bytes:
        """Read an image. Its path must be inside the folder.

        Raises:
            UsageError: if the path leads out of the folder.
            OSError: if the file cannot be read.
        """
        path = image_path(self.place, name)
        if self._elsewhere is None:
            return path.read_bytes()
        return self._elsewhere.read(pathlib.PurePosixPath(name).as_posix())
