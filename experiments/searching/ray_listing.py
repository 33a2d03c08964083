"""The images in and below a folder of any file system."""

from __future__ import annotations

import collections

from experiments.searching.file_systems import is_uri, opened_folder
from experiments.searching.image_files import ImageFile, list_images, settled
from pipelines.datasets.folder import EXTENSIONS, UNREAD, unread_endings

__all__ = ["list_anywhere"]


def list_anywhere(images: str) -> list[ImageFile]:
    """All images of a folder or URI, in the order of their paths.

    Raises:
        UsageError: it is not there, cannot be read, or holds no image.
    """
    if not is_uri(images):
        return list_images(images)
    listed = list(opened_folder(images).files((*EXTENSIONS, *UNREAD)))
    unread = collections.Counter(unread_endings(path for path, *_ in listed))
    found = [ImageFile(*file) for file in listed if file[0].lower().endswith(EXTENSIONS)]
    return settled(images, found, unread)
