"""Transforms: pure functions from an image and a seed to the input of a model.

Recipes say: resize the image, crop it, resize the crop. These transforms choose the window of the
crop in the resized image, map it back to the stored pixels, and resample only this part, once. For
fixed and center crops, which have the size of the output, the result equals the whole image resized
and then cropped, up to rounding. An area crop shows more detail than a crop of the resized image,
unless it has `crop_from="resized"`. With color jitter, the whole image is resized first, because
contrast depends on its mean.

A call needs TensorFlow (see `tensorflow_transforms`), whose area crops use a faster resampling (see
`resample`). The method `with_pillow` needs only Pillow.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from keras_dml._common.extras import needing
from pipelines.images.transform_settings import EvaluationSettings, TrainSettings

if TYPE_CHECKING:
    import tensorflow as tf

    from pipelines.images.decode import Source
    from pipelines.images.pillow_transforms import PillowSource


@dataclasses.dataclass(frozen=True)
class TrainTransform(TrainSettings):
    """Resize, color jitter, random crop, and random flip, a pure function of (source, seed).

    Crops:

    - `"area"`: The crop of Inception training, as in torchvision's `RandomResizedCrop`: up to ten
      attempts draw an area fraction uniformly in `area`, and a width/height uniformly in the
      logarithm in `aspect`. The first that fits gets a random position. If none fits, the crop is
      the largest central crop in `aspect`. It is resized to `image_size` squared.
    - `"fixed"`: `image_size` squared at a random position of the resized image.
    - `"none"`: The central `image_size` squared.

    The pixels of an area crop come from the stored image (`crop_from="original"`), resampled once,
    or from the resized image (`crop_from="resized"`), as papers describe it: resize, crop, and
    enlarge the crop, both antialiased. The resized image has whole levels, as in torchvision's
    transforms of Pillow images. `"original"` shows more detail. Other crops have the size of the
    output, so both are equal.

    Jitter is the same as torchvision's `ColorJitter`: factors for brightness, contrast, and
    saturation, uniform in [max(0, 1 - x), 1 + x], and a hue shift, uniform in [-hue, hue] (of the
    color circle). They are applied in a random order, and values are clamped to 0..255 after each.
    Jitter changes the whole resized image before the crop, because contrast blends with the mean of
    the image. With jitter, the image is resampled twice, and rounded to whole levels in between.

    Examples:
        >>> transform = TrainTransform(image_size=8, flip=True)
        >>> tuple(transform(np.zeros([20, 30, 3], "uint8"), np.array([0, 1])).shape)
        (8, 8, 3)

    Args:
        image_size: Side of the output in pixels.
        resize: Size before the crop: None (`image_size`), the length of the shortest side (keeps
            the aspect ratio), or the exact (height, width).
        crop: "area", "fixed", or "none".
        crop_from: The pixels of an area crop, "original" or "resized".
        area: Lowest and highest fraction of the resized image in an area crop.
        aspect: Lowest and highest width/height of an area crop.
        flip: Whether to mirror half of the images left to right.
        jitter: Strengths of brightness, contrast, saturation, and hue. 0 turns one off.
        max_pixels: Most pixels of an image file. Larger images raise an error before decoding.

    Raises:
        ValueError: An argument is out of range, or `resize` is smaller than a fixed crop.
    """

    def __call__(self, source: Source, seed: tf.Tensor) -> tf.Tensor:
        """Augment one image.

        Args:
            source: Scalar string tensor (the bytes of an image file), or uint8 `[h, w, 1 or 3]`. Or
                a pair of one of these and a box to crop to first, integers `[4]` (y, x, height,
                width).
            seed: int32 or int64 `[2]`. Equal seeds give equal bits.

        Returns:
            float32 `[image_size, image_size, 3]`, RGB in 0..255.

        Raises:
            tf.errors.InvalidArgumentError: The image cannot be read, or has more than `max_pixels`.
        """
        return _with_tensorflow().augment(self, source, seed)

    def with_pillow(self, source: PillowSource, seed: ArrayLike) -> np.ndarray:
        """Augment one image with Pillow and NumPy, without TensorFlow.

        The crop, the flip, and the jitter have the same distributions as in a call, and other
        random numbers. Without random choices, the result differs from a call by rounding: one
        level of 0..255, and a few levels if a call with `crop="area"` uses its faster resampling.

        Args:
            source: `bytes` of an image file, or uint8 `[h, w, 1 or 3]`. Or a pair of one of these
                and a box, as in a call.
            seed: Two integers of 0 or more. Equal seeds give equal bits.

        Returns:
            float32 `[image_size, image_size, 3]`, RGB in 0..255.

        Raises:
            ValueError: The image cannot be read, or has more than `max_pixels`.
        """
        return _with_pillow().augment(self, source, seed)


@dataclasses.dataclass(frozen=True)
class EvaluationTransform(EvaluationSettings):
    """A deterministic resize and center crop, also part of an exported model.

    Examples:
        >>> transform = EvaluationTransform(image_size=8, resize=10)
        >>> tuple(transform(np.zeros([20, 30, 3], "uint8")).shape)
        (8, 8, 3)

    Args:
        image_size: Side of the output in pixels.
        resize: Size before the crop: None (`image_size`), the length of the shortest side (keeps
            the aspect ratio), or the exact (height, width).
        max_pixels: Most pixels of an image file. Larger images raise an error before decoding.

    Raises:
        ValueError: A size is below 1, or `resize` is smaller than `image_size`.
    """

    def __call__(self, source: Source) -> tf.Tensor:
        """Transform one image, with a `source` as in `TrainTransform`.

        Returns:
            float32 `[image_size, image_size, 3]`, RGB in 0..255.
        """
        return _with_tensorflow().center(self, source)

    def with_pillow(self, source: PillowSource) -> np.ndarray:
        """Transform one image with Pillow, as `TrainTransform.with_pillow` does.

        Examples:
            >>> EvaluationTransform(8).with_pillow(np.zeros([20, 30, 3], "uint8")).shape
            (8, 8, 3)
        """
        return _with_pillow().center(self, source)


def _with_tensorflow() -> Any:
    with needing("tensorflow", "a call of a transform"):
        from pipelines.images import tensorflow_transforms
    return tensorflow_transforms


def _with_pillow() -> Any:
    with needing("images", "with_pillow"):
        from pipelines.images import pillow_transforms
    return pillow_transforms
