"""The settings of the transforms of images, which their two backends read.

`transforms` has the public classes, and `tensorflow_transforms` and `pillow_transforms` compute.
"""

from __future__ import annotations

import dataclasses
import math

from keras_dml._common.checks import argument_error, check_bool, check_choice, check_whole
from pipelines.checks import plain_numbers
from pipelines.max_pixels import MOST_PIXELS

CROPS = ("area", "fixed", "none")
"""The crops of a training image."""

CROP_SOURCES = ("original", "resized")
"""The images from which an area crop takes its pixels."""


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """The arguments of `TrainTransform`."""

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


@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
    """The arguments of `EvaluationTransform`."""

    image_size: int
    resize: int | tuple[int, int] | None = None
    max_pixels: int = dataclasses.field(default=MOST_PIXELS, repr=False)

    def __post_init__(self) -> None:
        _check_sizes(self, crop_is_fixed=True)


def _check_sizes(settings: TrainSettings | EvaluationSettings, crop_is_fixed: bool) -> None:
    """Check the sizes and convert NumPy integers to Python integers."""
    image_size = check_whole("image_size", settings.image_size, least=1)
    object.__setattr__(settings, "image_size", image_size)
    max_pixels = check_whole("max_pixels", settings.max_pixels, least=1)
    object.__setattr__(settings, "max_pixels", max_pixels)
    resize = settings.resize
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
    object.__setattr__(settings, "resize", sides if pair else sides[0])


def _check_range(settings: TrainSettings, name: str, at_most: float) -> None:
    """Check a pair (lowest, highest) and convert its numbers to Python numbers."""
    value = getattr(settings, name)
    plain = plain_numbers(value)
    if plain is None or len(plain) != 2 or not 0 < plain[0] <= plain[1] <= at_most:
        limit = "" if at_most == math.inf else f" <= {at_most:g}"
        wanted = f"(lowest, highest) with 0 < lowest <= highest{limit}"
        raise argument_error(name, wanted, value)
    object.__setattr__(settings, name, plain)
