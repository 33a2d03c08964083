"""Needs TensorFlow. Augmentation: pure functions from an image and a seed to a model's input.

The recipes say "resize, cut a crop out, resize that". Here the crop's window is chosen in the
coordinates of the resized image, mapped back onto the stored pixels, and only what the window
needs is decoded and resampled, once. Where the crop has the size of the output (fixed and centre
crops), the result is that of resizing the whole image and cutting, to rounding. Area crops are
resampled more quickly (see `resample`). With color jitter the whole image is decoded and resized
first, because contrast depends on its mean.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import tensorflow as tf

from keras_dml._common.checks import argument_error, check_bool, check_choice, check_whole, shown
from keras_dml._common.errors import ArgumentError
from pipelines.checks import plain_numbers
from pipelines.images import decode
from pipelines.images.decode import Source
from pipelines.images.jitter import JITTER_NUMBERS, jitter_colors
from pipelines.images.limits import MOST_PIXELS
from pipelines.images.resample import resample, resample_for_training
from pipelines.images.windows import (
    WINDOW_NUMBERS,
    Window,
    area_window,
    central_window,
    fixed_window,
    resized_size,
)

CROPS: dict[str, Callable[["TrainTransform", tf.Tensor, tf.Tensor], Window]] = {
    "area": lambda made, size, place: area_window(size, place, made.area, made.aspect),
    "fixed": lambda made, size, place: fixed_window(size, place, made.image_size),
    "none": lambda made, size, place: central_window(size, made.image_size),
}
"""The crops of a training image by name: from (transform, size, random numbers) to a window."""


@dataclasses.dataclass(frozen=True)
class TrainTransform:
    """Resize, color jitter, random crop, and random flip; a pure function of (source, seed).

    Crops:
        "area": the crop of Inception training, drawn as torchvision's `RandomResizedCrop` does: up
            to ten times an area fraction uniform in `area` and a width/height uniform in the
            logarithm within `aspect`, the first that fits at a uniform place; if none fits, the
            largest central crop within `aspect`. Resized to `image_size` squared.
        "fixed": `image_size` squared at a uniform place of the resized image.
        "none": the central `image_size` squared.

    Jitter follows torchvision's `ColorJitter`: factors of brightness, contrast and saturation
    uniform in [max(0, 1 - x), 1 + x], a hue shift uniform in [-hue, hue] (of the colour circle),
    applied in a random order, clamped to 0..255 after each. Jitter acts on the whole resized image
    before the crop, because contrast blends with the mean of the image. The image is then resampled
    twice, and rounded to whole levels in between.

    Examples:
        >>> transform = TrainTransform(image_size=8, flip=True)
        >>> tuple(transform(np.zeros([20, 30, 3], "uint8"), np.array([0, 1])).shape)
        (8, 8, 3)

    Args:
        image_size: side of the output in pixels.
        resize: size before the crop: None (`image_size`), an int (the shortest side; the ratio is
            kept), or (height, width) exactly.
        crop: "area", "fixed" or "none".
        area: lowest and highest fraction of the resized image that an area crop covers.
        aspect: lowest and highest width/height of an area crop.
        flip: whether half of the images are mirrored left to right.
        jitter: strengths of brightness, contrast, saturation and hue; 0 leaves one out.
        max_pixels: how many pixels an image file may have: one whose header announces more is
            refused before it is decoded.

    Raises:
        ValueError: an argument is out of its range, or `resize` is smaller than a crop of fixed
            size.
    """

    image_size: int
    resize: int | tuple[int, int] | None = None
    crop: str = "area"
    area: tuple[float, float] = (0.16, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True
    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    # Not part of the name of what was computed: it changes no image.
    max_pixels: int = dataclasses.field(default=MOST_PIXELS, repr=False)

    def __post_init__(self) -> None:
        check_choice("crop", self.crop, tuple(CROPS))
        object.__setattr__(self, "flip", check_bool("flip", self.flip))
        _check_sizes(self, crop_is_fixed=self.crop != "area")
        _check_range(self, "area", at_most=1.0)
        _check_range(self, "aspect", at_most=math.inf)
        jitter = plain_numbers(self.jitter)
        if jitter is None or len(jitter) != 4 or min(jitter) < 0 or jitter[3] > 0.5:
            raise ArgumentError(
                "jitter must be four strengths that are not negative (brightness, contrast, "
                f"saturation, hue), hue at most 0.5. Received: jitter={shown(self.jitter)}"
            )
        object.__setattr__(self, "jitter", jitter)

    def __call__(self, source: Source, seed: tf.Tensor) -> tf.Tensor:
        """Augment one image.

        Args:
            source: scalar string tensor (bytes of an image file) or uint8 [h, w, 1 or 3]; or a pair
                of such a tensor and the box that the image is cut down to first, integers [4]
                (y, x, height, width).
            seed: int32 or int64 [2]; equal seeds give equal bits.

        Returns:
            float32 [image_size, image_size, 3], RGB in 0..255.
        """
        return _shared(_augmented, self)(source, seed)

    def draw(
        self, size: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, Window, tf.Tensor, tf.Tensor]:
        """What is done to an image of a size, before any of its pixels is seen.

        Args:
            size: int32 [2], height and width.
            seed: int32 or int64 [2].

        Returns:
            `(resized, window, flip_number, jitter_numbers)`: int32 [2], height and width of the
            resized image; the crop's window in it, see `windows`; float32 [1], below 0.5 for a
            mirrored image; float32 [8], see `jitter.jitter_colors`.
        """
        resized = resized_size(size, self.resize or self.image_size)
        # One draw for everything: a random operation costs more than all the numbers it gives.
        numbers = [WINDOW_NUMBERS, 1, JITTER_NUMBERS]
        uniform = tf.random.stateless_uniform([sum(numbers)], seed)
        place, flip_number, jitter_numbers = tf.split(uniform, numbers)
        window = CROPS[self.crop](self, resized, place)
        return resized, window, flip_number, jitter_numbers


@dataclasses.dataclass(frozen=True)
class EvaluationTransform:
    """Resize and centre crop, the same every time; also what a served model does to its images.

    Examples:
        >>> transform = EvaluationTransform(image_size=8, resize=10)
        >>> tuple(transform(np.zeros([20, 30, 3], "uint8")).shape)
        (8, 8, 3)

    Args:
        image_size: side of the output in pixels.
        resize: size before the crop: None (`image_size`), an int (the shortest side; the ratio is
            kept), or (height, width) exactly.
        max_pixels: how many pixels an image file may have: one whose header announces more is
            refused before it is decoded.

    Raises:
        ValueError: a size is below 1, or `resize` is smaller than `image_size`.
    """

    image_size: int
    resize: int | tuple[int, int] | None = None
    max_pixels: int = dataclasses.field(default=MOST_PIXELS, repr=False)

    def __post_init__(self) -> None:
        _check_sizes(self, crop_is_fixed=True)

    def __call__(self, source: Source) -> tf.Tensor:
        """float32 [image_size, image_size, 3], RGB in 0..255, of a `source` as in training."""
        return _shared(_central, self)(source)


def _augmented(transform: TrainTransform, source: Source, seed: tf.Tensor) -> tf.Tensor:
    image = decode.open_image(source, transform.max_pixels)
    resized, window, flip_number, jitter_numbers = transform.draw(image.size, seed)
    read = resample_for_training if transform.crop == "area" else resample
    if any(transform.jitter):
        whole = read(image, resized, (tf.zeros([2]), tf.cast(resized, tf.float32)), resized)
        jittered = jitter_colors(whole, jitter_numbers, transform.jitter)
        image = decode.PixelImage(tf.cast(tf.round(jittered), tf.uint8))
    output = read(image, resized, window, transform.image_size)
    if transform.flip:
        mirrored = tf.cond(
            tf.squeeze(flip_number < 0.5), lambda: tf.reverse(output, [1]), lambda: output
        )
    else:
        mirrored = output
    return tf.ensure_shape(mirrored, [transform.image_size, transform.image_size, 3])


def _central(transform: EvaluationTransform, source: Source) -> tf.Tensor:
    image = decode.open_image(source, transform.max_pixels)
    resized = resized_size(image.size, transform.resize or transform.image_size)
    window = central_window(resized, transform.image_size)
    output = resample(image, resized, window, transform.image_size)
    return tf.ensure_shape(output, [transform.image_size, transform.image_size, 3])


def _shared(
    compute: Callable[..., tf.Tensor], transform: TrainTransform | EvaluationTransform
) -> Callable[..., tf.Tensor]:
    """`compute` with this transform: in a graph, one function for all graphs of the process.

    A run builds some twenty pipelines, and each would be traced anew for half a second.
    """
    if tf.executing_eagerly():
        return functools.partial(compute, transform)
    return _traced(compute, transform)


@functools.lru_cache(maxsize=64)
def _traced(
    compute: Callable[..., tf.Tensor], transform: TrainTransform | EvaluationTransform
) -> Callable[..., tf.Tensor]:
    return tf.function(functools.partial(compute, transform), autograph=False)


def _check_sizes(transform: TrainTransform | EvaluationTransform, crop_is_fixed: bool) -> None:
    """Refuses sizes that do not fit, and makes ints of NumPy's integers."""
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
        raise ArgumentError(
            "resize must be None, the shortest side (at least 1) or a tuple (height, width). "
            f"Received: resize={shown(resize)}"
        )
    if crop_is_fixed and min(sides) < image_size:
        raise ArgumentError(
            "resize must be at least image_size, or the crop does not fit. "
            f"Received: resize={resize!r}, image_size={image_size}"
        )
    object.__setattr__(transform, "resize", sides if pair else sides[0])


def _check_range(transform: TrainTransform, name: str, at_most: float) -> None:
    """Refuses what is no (lowest, highest), and makes Python's numbers of NumPy's."""
    value = getattr(transform, name)
    plain = plain_numbers(value)
    if plain is None or len(plain) != 2 or not 0 < plain[0] <= plain[1] <= at_most:
        limit = "" if at_most == math.inf else f" <= {at_most:g}"
        wanted = f"(lowest, highest) with 0 < lowest <= highest{limit}"
        raise argument_error(name, wanted, value)
    object.__setattr__(transform, name, plain)
