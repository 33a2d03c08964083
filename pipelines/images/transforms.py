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
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from keras_dml._common.checks import argument_error, check_bool, check_choice, check_whole
from keras_dml._common.extras import needing
from pipelines.checks import plain_numbers
from pipelines.max_pixels import MOST_PIXELS

if TYPE_CHECKING:
    import tensorflow as tf

    from pipelines.images.decode import Source
    from pipelines.images.pillow_transforms import PillowSource

CROPS = ("area", "fixed", "none")
"""The crops of a training image."""

CROP_SOURCES = ("original", "resized")
"""The images from which an area crop takes its pixels."""


@dataclasses.dataclass(frozen=True)
class TrainTransform:
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

    image_size: int
    resize: int | tuple[int, int] | None = None
    crop: str = "area"
    # A keyword, because the arguments after it were positional before it existed.
    crop_from: str = dataclasses.field(default="original", kw_only=True)
    area: tuple[float, float] = (0.16, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True
    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    # Not in the repr, which names cached results, because it does not change images.
    max_pixels: int = dataclasses.field(default=MOST_PIXELS, repr=False)

    def __post_init__(self) -> None:
        check_choice("crop", self.crop, CROPS)
        check_choice("crop_from", self.crop_from, CROP_SOURCES)
        object.__setattr__(self, "flip", check_bool("flip", self.flip))
        _check_sizes(self, crop_is_fixed=self.crop != "area")
        _check_range(self, "area", at_most=1.0)
        _check_range(self, "aspect", at_most=math.inf)
        jitter = plain_numbers(self.jitter)
        if jitter is None or len(jitter) != 4 or min(jitter) < 0 or jitter[3] > 0.5:
            wanted = "four strengths from 0 (brightness, contrast, saturation, hue), hue up to 0.5"
            raise argument_error("jitter", wanted, self.jitter)
        object.__setattr__(self, "jitter", jitter)

    @property
    def crops_resized_image(self) -> bool:
        """Whether the image is resized, then cropped, and the crop is resized."""
        return self.crop == "area" and self.crop_from == "resized"

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
class EvaluationTransform:
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

    image_size: int
    resize: int | tuple[int, int] | None = None
    max_pixels: int = dataclasses.field(default=MOST_PIXELS, repr=False)

    def __post_init__(self) -> None:
        _check_sizes(self, crop_is_fixed=True)

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


def _check_sizes(transform: TrainTransform | EvaluationTransform, crop_is_fixed: bool) -> None:
    """Check the sizes and convert NumPy integers to Python integers."""
    image_size = check_whole("image_size", transform.image_size, least=1)
    object.__setattr__(transform, "image_size", image_size)
    max_pixels = check_whole("max_pixels", transform.max_pixels, least=1)
    object.__setattr__(transform, "max_pixels", max_pixels)
    resize = transform.resize
    if resize is None:
        return
    pair = isinstance(resize, tuple) and len(resize) == 2
    sides = plain_numbers(resize if pair else (resize,))
    if sides is None or not all(isinstance(side, int) and side >= 1 for side in sides):
        wanted = "None, the shortest side (at least 1), or a tuple (height, width)"
        raise argument_error("resize", wanted, resize)
    if crop_is_fixed and min(sides) < image_size:
        wanted = f"at least image_size={image_size}, so that the crop fits"
        raise argument_error("resize", wanted, resize)
    object.__setattr__(transform, "resize", sides if pair else sides[0])


def _check_range(transform: TrainTransform, name: str, at_most: float) -> None:
    """Check a pair (lowest, highest) and convert its numbers to Python numbers."""
    value = getattr(transform, name)
    plain = plain_numbers(value)
    if plain is None or len(plain) != 2 or not 0 < plain[0] <= plain[1] <= at_most:
        limit = "" if at_most == math.inf else f" <= {at_most:g}"
        wanted = f"(lowest, highest) with 0 < lowest <= highest{limit}"
        raise argument_error(name, wanted, value)
    object.__setattr__(transform, name, plain)
