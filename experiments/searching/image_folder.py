"""The folder of an index's images: here, or wherever Arrow reads one."""

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
    """Refuse an address as the images' folder that an index names.

    The index may come from a stranger. To open its address is to send the user's credentials to a
    server that the stranger chooses.

    Args:
        place: the folder or address.
        index: the index, for the message.

    Raises:
        UsageError: `place` is an address.
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
    """Where the images lie that an index names.

    Args:
        place: a path, or a URI such as s3://BUCKET/FOLDER.

    Attributes:
        place: as given.
        name: of the folder itself.

    Raises:
        UsageError: the folder is not there, or cannot be reached.
        MissingExtraError: a URI, and Arrow is not installed.
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
        """The contents of an image's file, which lies inside the folder whatever its name says.

        Raises:
            ValueError: the index holds a name that leads out of it.
            OSError: the file cannot be read.
        """
        path = image_path(self.place, name)
        if self._elsewhere is None:
            return path.read_bytes()
        return self._elsewhere.read(pathlib.PurePosixPath(name).as_posix())
