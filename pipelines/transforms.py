"""Needs TensorFlow. Augmentation: pure functions from an image and a seed to a model's input.

The recipes say "resize, cut a crop out, resize that". Here the crop's window is chosen in the
coordinates of the resized image, mapped back onto the stored pixels, and only what the window
needs is decoded and resampled, once. Where the crop has the size of the output (fixed and centre
crops), the result is that of resizing the whole image and cutting, to rounding.
"""

import dataclasses
import math

import tensorflow as tf

from pipelines import decode

_CROPS = ("area", "fixed", "none")
_CROP_ATTEMPTS = 10
# How many uniform numbers each draw takes; the place of a crop takes the last two of the crop's.
_CROP_NUMBERS = 2 * _CROP_ATTEMPTS + 2
_FLIP_NUMBERS = 1
_JITTER_NUMBERS = 8
_GREY_WEIGHTS = (0.299, 0.587, 0.114)  # of red, green, blue (ITU-R BT.601)


@dataclasses.dataclass(frozen=True)
class TrainTransform:
    """Resize, random crop, random flip and colour jitter; a pure function of (source, seed).

    Crops:
        "area": the crop of Inception training, drawn as torchvision's `RandomResizedCrop` does: up
            to ten times an area fraction uniform in `area` and a width/height uniform in the
            logarithm within `aspect`, the first that fits at a uniform place; if none fits, the
            largest central crop within `aspect`. Resized to `image_size` squared.
        "fixed": `image_size` squared at a uniform place of the resized image.
        "none": the central `image_size` squared.

    Jitter follows torchvision's `ColorJitter`: factors of brightness, contrast and saturation
    uniform in [max(0, 1 - x), 1 + x], a hue shift uniform in [-hue, hue] (of the colour circle),
    applied in a random order, clamped to 0..255 after each.

    Args:
        image_size: side of the output in pixels.
        resize: size before the crop: None (`image_size`), an int (the shortest side; the ratio is
            kept), or (height, width) exactly.
        crop: "area", "fixed" or "none".
        area: lowest and highest fraction of the resized image that an area crop covers.
        aspect: lowest and highest width/height of an area crop.
        flip: whether half of the images are mirrored left to right.
        jitter: strengths of brightness, contrast, saturation and hue; 0 leaves one out.

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

    def __post_init__(self):
        if self.crop not in _CROPS:
            raise ValueError(f"crop must be one of {_CROPS}. Received: crop={self.crop!r}")
        _check_sizes(self.image_size, self.resize, crop_is_fixed=self.crop != "area")
        _check_range("area", self.area, at_most=1.0)
        _check_range("aspect", self.aspect, at_most=math.inf)
        if (
            len(self.jitter) != 4
            or not all(0 <= strength < math.inf for strength in self.jitter)
            or self.jitter[3] > 0.5
        ):
            raise ValueError(
                "jitter must be four strengths that are not negative (brightness, contrast, "
                f"saturation, hue), hue at most 0.5. Received: jitter={self.jitter}"
            )

    def __call__(self, source, seed):
        """Augment one image.

        Args:
            source: scalar string tensor (bytes of an image file) or uint8 [h, w, 1 or 3]; or a pair
                of such a tensor and the box that the image is cut down to first, integers [4]
                (y, x, height, width).
            seed: int32 or int64 [2]; equal seeds give equal bits.

        Returns:
            float32 [image_size, image_size, 3], RGB in 0..255.
        """
        image = decode.open_image(source)
        resized = _resized(image.size, self.resize or self.image_size)
        # One draw for everything: a random operation costs more than all the numbers it gives.
        numbers = [_CROP_NUMBERS, _FLIP_NUMBERS, _JITTER_NUMBERS]
        uniform = tf.random.stateless_uniform([sum(numbers)], seed)
        crop_numbers, flip_number, jitter_numbers = tf.split(uniform, numbers)
        if self.crop == "area":
            window = area_window(resized, crop_numbers, self.area, self.aspect)
        elif self.crop == "fixed":
            window = _place(resized, [self.image_size, self.image_size], crop_numbers[-2:])
        else:
            window = _centre(resized, self.image_size)
        output = _resample(image, resized, window, self.image_size)
        if self.flip:
            mirrored = tf.cond(
                flip_number[0] < 0.5, lambda: tf.reverse(output, [1]), lambda: output
            )
        else:
            mirrored = output
        jittered = jitter_colours(mirrored, jitter_numbers, self.jitter)
        return tf.ensure_shape(jittered, [self.image_size, self.image_size, 3])


@dataclasses.dataclass(frozen=True)
class EvaluationTransform:
    """Resize and centre crop, the same every time; also what a served model does to its images.

    Args:
        image_size: side of the output in pixels.
        resize: size before the crop: None (`image_size`), an int (the shortest side; the ratio is
            kept), or (height, width) exactly.

    Raises:
        ValueError: a size is below 1, or `resize` is smaller than `image_size`.
    """

    image_size: int
    resize: int | tuple[int, int] | None = None

    def __post_init__(self):
        _check_sizes(self.image_size, self.resize, crop_is_fixed=True)

    def __call__(self, source):
        """float32 [image_size, image_size, 3], RGB in 0..255, of a `source` as in training."""
        image = decode.open_image(source)
        resized = _resized(image.size, self.resize or self.image_size)
        output = _resample(image, resized, _centre(resized, self.image_size), self.image_size)
        return tf.ensure_shape(output, [self.image_size, self.image_size, 3])


def area_window(size, uniform, area, aspect):
    """Window of an area crop (see `TrainTransform`), computed from given random numbers.

    Args:
        size: int32 [2], height and width of the image.
        uniform: float32 [22] in [0, 1): area fraction and aspect of each of the ten attempts,
            then the place, vertical and horizontal.
        area, aspect: (lowest, highest).

    Returns:
        int32 [4]: y, x, height, width, inside the image.
    """
    height, width = tf.unstack(tf.cast(size, tf.float32))
    low = [area[0], math.log(aspect[0])]
    high = [area[1], math.log(aspect[1])]
    span = [high[0] - low[0], high[1] - low[1]]
    drawn = low + tf.reshape(uniform[:-2], [_CROP_ATTEMPTS, 2]) * span
    pixels, ratio = height * width * drawn[:, 0], tf.exp(drawn[:, 1])
    # All ten attempts at once: a loop that ends early would cost more than it saves.
    crops = tf.cast(tf.round(tf.sqrt(tf.stack([pixels / ratio, pixels * ratio], 1))), tf.int32)
    fits = tf.reduce_all((crops > 0) & (crops <= size), 1)
    attempt = tf.argmax(fits)  # the first that fits
    window = _place(size, crops[attempt], uniform[-2:])

    central_width = tf.round(tf.minimum(width, height * aspect[1]))
    central_height = tf.round(tf.minimum(height, width / aspect[0]))
    # An image of one pixel's width or height can round the other side to nothing.
    central = tf.maximum(tf.cast(tf.stack([central_height, central_width]), tf.int32), 1)
    return tf.where(fits[attempt], window, tf.concat([(size - central) // 2, central], 0))


def jitter_colours(image, uniform, jitter):
    """Jitter colours (see `TrainTransform`) by given random numbers.

    Args:
        image: float32 [height, width, 3], RGB in 0..255.
        uniform: float32 [8] in [0, 1), brightness, contrast, saturation, hue: where each factor
            lies in its range, then four keys, in whose ascending order they are applied.
        jitter: the four strengths; those that are 0 are left out when traced.

    Returns:
        float32 [height, width, 3] in 0..255.
    """
    adjust = (_adjust_brightness, _adjust_contrast, _adjust_saturation, _adjust_hue)
    used = [number for number, strength in enumerate(jitter) if strength > 0]
    if not used:
        return image
    low = [-jitter[3] if n == 3 else max(0.0, 1.0 - jitter[n]) for n in used]
    high = [jitter[3] if n == 3 else 1.0 + jitter[n] for n in used]
    position, key = tf.unstack(tf.gather(tf.reshape(uniform, [2, 4]), used, axis=1))
    factors = low + position * [above - below for below, above in zip(low, high)]
    order = tf.argsort(key)
    for place in range(len(used)):

        def branch(slot, image=image):
            adjusted = adjust[used[slot]](image, factors[slot])
            return tf.clip_by_value(adjusted, 0.0, 255.0)

        branches = [lambda slot=slot, branch=branch: branch(slot) for slot in range(len(used))]
        image = tf.switch_case(order[place], branches)
    return image


def _adjust_brightness(image, factor):
    return image * factor


def _adjust_contrast(image, factor):
    """Blend with the mean of the grey image."""
    grey = tf.tensordot(tf.reduce_mean(image, [0, 1]), tf.constant(_GREY_WEIGHTS), 1)
    return image * factor + (1.0 - factor) * grey


def _adjust_saturation(image, factor):
    """Blend each pixel with its own grey."""
    # Linear in the colour, so one 3 by 3 matrix does it.
    grey = tf.tile(tf.constant(_GREY_WEIGHTS)[:, None], [1, 3])
    return tf.tensordot(image, factor * tf.eye(3) + (1.0 - factor) * grey, 1)


def _adjust_hue(image, shift):
    # The operation itself: tf.image.adjust_hue adds checks, and HSV's hue has no scale to convert.
    return tf.raw_ops.AdjustHue(images=image, delta=shift)


def _resized(size, resize):
    """Int32 [2]: height and width of the resized image; the longer side is rounded down."""
    if isinstance(resize, int):
        return resize * size // tf.reduce_min(size)
    return tf.constant(resize, tf.int32)


def _centre(size, side):
    start = tf.round(tf.cast(size - side, tf.float32) / 2.0)
    return tf.concat([tf.cast(start, tf.int32), [side, side]], 0)


def _place(size, crop, uniform):
    """Window of `crop` = [height, width] at a uniform place of an image of `size`."""
    places = size - crop + 1
    start = tf.cast(uniform * tf.cast(places, tf.float32), tf.int32)
    # The product can round up to `places`.
    return tf.concat([tf.minimum(start, places - 1), crop], 0)


def _resample(image, resized, window, image_size):
    """Read `window` of the resized image, scaled to `image_size`; bilinear, antialiased."""
    window = tf.cast(window, tf.float32)
    stored_per_resized = tf.cast(image.size, tf.float32) / tf.cast(resized, tf.float32)
    start = window[:2] * stored_per_resized
    extent = window[2:] * stored_per_resized
    step = extent / image_size  # stored pixels from one output pixel to the next
    reach = 0.5 * tf.maximum(step, 1.0) + 1.0  # of the filter beyond the window
    first = tf.maximum(tf.cast(tf.floor(start - reach), tf.int32), 0)
    last = tf.minimum(tf.cast(tf.math.ceil(start + extent + reach), tf.int32), image.size)
    pixels = image.crop(tf.concat([first, last - first], 0))
    # What tf.image.resize(antialias=True) calls, with the window's fraction of a pixel kept.
    output = tf.raw_ops.ScaleAndTranslate(
        images=pixels[None],
        size=[image_size, image_size],
        scale=1.0 / step,
        translation=(tf.cast(first, tf.float32) - start) / step,
        kernel_type="triangle",
        antialias=True,
    )[0]
    return tf.tile(output, [1, 1, 3]) if pixels.shape[-1] == 1 else output


def _check_sizes(image_size, resize, crop_is_fixed):
    if not _is_size(image_size):
        raise ValueError(f"image_size must be at least 1. Received: image_size={image_size!r}")
    if resize is None:
        return
    sides = resize if isinstance(resize, tuple) and len(resize) == 2 else (resize,)
    if not all(_is_size(side) for side in sides):
        raise ValueError(
            "resize must be None, the shortest side (at least 1) or a tuple (height, width). "
            f"Received: resize={resize!r}"
        )
    if crop_is_fixed and min(sides) < image_size:
        raise ValueError(
            "resize must be at least image_size, or the crop does not fit. "
            f"Received: resize={resize!r}, image_size={image_size}"
        )


def _is_size(side):
    return isinstance(side, int) and not isinstance(side, bool) and side >= 1


def _check_range(name, value, at_most):
    if len(value) != 2 or not (0 < value[0] <= value[1] <= at_most and value[1] < math.inf):
        limit = "" if at_most == math.inf else f" <= {at_most:g}"
        raise ValueError(
            f"{name} must be (lowest, highest) with 0 < lowest <= highest{limit}. "
            f"Received: {name}={value}"
        )
