"""Decoding, cropping, resampling, and color jitter of images. Search for unreadable images."""

from pipelines.images.bad_images import find_bad_images
from pipelines.images.transforms import EvaluationTransform, TrainTransform

__all__ = ["EvaluationTransform", "TrainTransform", "find_bad_images"]
