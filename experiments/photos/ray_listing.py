"""The images in and below a folder of any file system."""

from __future__ import annotations

from experiments.options.errors import UsageError
from experiments.photos.image_files import ImageFile, list_images
from experiments.stores.file_systems import is_uri, opened_folder
from pipelines.datasets.folder import EXTENSIONS

__all__ = ["list_anywhere"]


def list_anywhere(images: str) -> list[ImageFile]:
    """All images of a folder or URI, in the order of their paths.

    Raises:
        UsageError: it is not there, cannot be read, or holds no image.
    """
    if not is_uri(images):
        return list_images(images)
    found = sorted(ImageFile(*file) for file in opened_folder(images).files(EXTENSIONS))
    if not found:
        raise UsageError(
            f"images must hold {', '.join(EXTENSIONS)} files. Received: images={images}, which "
            "holds none"
        )
    return found
