"""Images: decoded, cut, resampled, jittered; and those that cannot be."""

from pipelines.images.bad_images import find_bad_images
from pipelines.images.transforms import EvaluationTransform, TrainTransform

__all__ = ["EvaluationTransform", "TrainTransform", "find_bad_images"]
