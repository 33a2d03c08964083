"""Decoding, cropping, resampling, and color jitter of images. Search for unreadable images."""

from typing import TYPE_CHECKING

from pipelines.images.transforms import EvaluationTransform, TrainTransform

if TYPE_CHECKING:  # __getattr__ imports this name at run time, because it needs TensorFlow
    from pipelines.images.bad_images import find_bad_images

__all__ = ["EvaluationTransform", "TrainTransform", "find_bad_images"]


def __getattr__(name: str) -> object:
    if name != "find_bad_images":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pipelines.images.bad_images import find_bad_images

    return find_bad_images
