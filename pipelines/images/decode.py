"""Needs TensorFlow. Decoding of image files to RGB pixels, of the whole image or of one window.

Everything is a graph operation, so that tf.data pipelines and SavedModels run the same code.

All files become uint8 RGB. Gray is repeated, CMYK and palettes are converted, 16 bits keep their
high byte, an animated GIF becomes its first frame, and transparent pixels of PNG and WebP get a
white background. (TensorFlow reads no transparency from BMP and GIF. A BMP keeps its stored colors,
and transparent pixels of a GIF are black.) The EXIF orientation is applied (see `orientation`):
sizes and windows refer to the upright image. JPEGs are decoded with the accurate integer transform,
which gives the same bits as Pillow and is as fast as the other one.
"""

import functools
from typing import TypeAlias, cast

import tensorflow as tf

from keras_dml._common.errors import ArgumentTypeError
from pipelines.images.file_bytes import (
    holds,
    is_jpeg,
    is_png,
    is_webp,
    little_endian,
    numbers,
    part,
)
from pipelines.images.limits import MOST_PIXELS, announced_size, checked_pixels
from pipelines.images.orientation import (
    UPRIGHT,
    read_orientation,
    stored_window,
    turned_pixels,
    turned_size,
    upright_window,
)

# The bytes of an image file, scalar string, or pixels, uint8. Optionally with a box.
Source: TypeAlias = tf.Tensor | tuple[tf.Tensor, tf.Tensor]

_ANIMATION_BIT = 0x02  # in the flags of a WebP's VP8X chunk
# Chroma is stored at half the width and interpolated. The outer columns of a window therefore need
# their neighbors to equal the columns of the whole image.
_CHROMA_REACH = 2
_DCT = "INTEGER_ACCURATE"
# A function with this option is one operation of a graph, because operations in an untaken branch
# still cost a little each. TensorFlow traces it once per process, not once per pipeline.
one_operation = functools.partial(
    tf.function, autograph=False, experimental_attributes={"_noinline": True}
)


class PixelImage:
    """An image of decoded pixels, with the interface of `EncodedImage`.

    Args:
        pixels: uint8 `[height, width, channels]`, with 1 or 3 channels (statically known).

    Raises:
        TypeError: `pixels` has another dtype or shape (at trace time).
    """

    is_jpeg = False

    def __init__(self, pixels: tf.Tensor) -> None:
        if pixels.dtype != tf.uint8 or pixels.shape.rank != 3 or pixels.shape[-1] not in (1, 3):
            raise ArgumentTypeError(
                "source must be a scalar string (the bytes of an image file), or uint8 "
                "[height, width, channels] with 1 or 3 channels, but got dtype "
                f"{pixels.dtype.name} and shape {pixels.shape}."
            )
        self._pixels = pixels
        self.size = tf.shape(pixels)[:2]

    def crop(self, window: tf.Tensor) -> tf.Tensor:
        """Return the pixels of `window` = int32 [y, x, height, width], uint8 [height, width, c]."""
        return _slice(self._pixels, window)

    def within_upright(self, box: tf.Tensor) -> tf.Tensor:
        """Return the box unchanged, because pixels are upright."""
        return box


class EncodedImage:
    """An image file in memory that reads its size first, and then the pixels of windows.

    A JPEG reads its size from its header and decodes only the window. Other formats decode the
    whole image once, and the window is a slice.

    Args:
        encoded: Scalar string, a JPEG, PNG, WebP, BMP, or GIF file, distinguished by the first
            bytes.
        max_pixels: Most pixels that the image can have, checked against the header before
            decoding.

    Attributes:
        size: int32 `[2]`, height and width of the upright image in pixels.
        is_jpeg: Scalar bool, whether `crop_jpeg` is valid.

    Raises (when the operations run):
        tf.errors.InvalidArgumentError: The file has another format, is damaged, or has more than
            `max_pixels`. Or it is an animated WebP, on which TensorFlow's decoder writes past its
            buffer.
    """

    def __init__(self, encoded: tf.Tensor, max_pixels: int = MOST_PIXELS) -> None:
        self._encoded = encoded
        self.is_jpeg = is_jpeg(encoded)
        # The message of an error is shorter outside of a function.
        opened = _opened if tf.executing_eagerly() else _opened_in_one_operation
        self.size, self._orientation, self._rgba = opened(encoded, max_pixels)
        self.size.set_shape([2])

    def crop(self, window: tf.Tensor) -> tf.Tensor:
        """Return the pixels of `window` = int32 [y, x, height, width], uint8 [height, width, 3].

        They are equal to that part of the whole decoded image.
        """
        window = tf.convert_to_tensor(window)
        return _crop(self._encoded, self.is_jpeg, self.size, self._orientation, self._rgba, window)

    def crop_jpeg(self, window: tf.Tensor, reduction: int = 1) -> tf.Tensor:
        """Return the pixels of a window of a JPEG quickly, uint8 [height, width, 3].

        Without reduction, they equal the result of `crop`, except for the color (not the
        brightness) of the outer columns. With reduction, the decoder averages blocks of `reduction`
        squared pixels at no cost. The window is rounded to whole blocks, at least one.

        Args:
            window: int32 [y, x, height, width] in pixels of the upright image.
            reduction: 1, 2, 4, or 8.
        """
        window = tf.convert_to_tensor(window)
        return _crop_jpeg(self._encoded, self.size, self._orientation, window, reduction)

    def within_upright(self, box: tf.Tensor) -> tf.Tensor:
        """Convert `box`, int32 `[4]` in stored pixels, to a window of the upright image."""
        return _upright_box(box, self.size, self._orientation)


class BoxedImage:
    """The part of an image inside a box, with the interface of `EncodedImage`.

    Args:
        image: `EncodedImage` or `PixelImage`.
        box: int64 `[4]`: y, x, height, width, in stored pixels, before the orientation is applied.
            The part outside the image is ignored. At least one pixel is left.
    """

    def __init__(self, image: EncodedImage | PixelImage, box: tf.Tensor) -> None:
        start, extent = tf.split(image.within_upright(tf.cast(box, tf.int32)), 2)
        self._image = image
        self._start = tf.clip_by_value(start, 0, image.size - 1)
        end = tf.clip_by_value(start + extent, self._start + 1, image.size)
        self.size = end - self._start
        self.is_jpeg = image.is_jpeg

    def crop(self, window: tf.Tensor) -> tf.Tensor:
        """Return the pixels of `window` = int32 [y, x, height, width], relative to the box."""
        return self._image.crop(self._within_image(window))

    def crop_jpeg(self, window: tf.Tensor, reduction: int = 1) -> tf.Tensor:
        """Return `EncodedImage.crop_jpeg` for a window relative to the box."""
        return cast(EncodedImage, self._image).crop_jpeg(self._within_image(window), reduction)

    def _within_image(self, window: tf.Tensor) -> tf.Tensor:
        return tf.concat([self._start + window[:2], window[2:]], 0)


Image: TypeAlias = EncodedImage | PixelImage | BoxedImage


def open_image(source: Source, max_pixels: int = MOST_PIXELS) -> Image:
    """Return an `EncodedImage` for a scalar string tensor, or a `PixelImage` for a uint8 tensor.

    Args:
        source: The tensor, or a pair of the tensor and a box, integers `[4]`. The pair returns a
            `BoxedImage`.
        max_pixels: As for `EncodedImage`.

    Raises:
        TypeError: `source` is anything else (at trace time).
    """
    if isinstance(source, tuple):
        image, box = source
        return BoxedImage(_open_whole(image, max_pixels), box)
    return _open_whole(source, max_pixels)


def _open_whole(source: tf.Tensor, max_pixels: int) -> EncodedImage | PixelImage:
    source = tf.convert_to_tensor(source)
    return EncodedImage(source, max_pixels) if source.dtype == tf.string else PixelImage(source)


def decode_image(encoded: tf.Tensor, max_pixels: int = MOST_PIXELS) -> tf.Tensor:
    """Return the whole encoded image as uint8 [height, width, 3].

    Args:
        encoded: Scalar string, as for `EncodedImage`.
        max_pixels: Most pixels that the image can have.

    Raises:
        tf.errors.InvalidArgumentError: As for `EncodedImage`.
    """
    image = EncodedImage(encoded, max_pixels)
    return image.crop(tf.concat([[0, 0], image.size], 0))


def _slice(pixels: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    y, x, height, width = tf.unstack(window)
    return pixels[y : y + height, x : x + width]


def _decode_jpeg(
    encoded: tf.Tensor, size: tf.Tensor, window: tf.Tensor, reduction: int | None
) -> tf.Tensor:
    """Decode a window of a stored JPEG. Without a reduction, all its colors are exact."""
    if reduction is None:
        y, x, height, width = tf.unstack(window)
        left = tf.maximum(x - _CHROMA_REACH, 0)
        right = tf.minimum(x + width + _CHROMA_REACH, size[1])
        window = [y, left, height, right - left]
    elif reduction > 1:
        blocks = -(-size // reduction)
        start = tf.minimum((window[:2] + reduction // 2) // reduction, blocks - 1)
        end = (window[:2] + window[2:] + reduction // 2) // reduction
        end = tf.clip_by_value(end, start + 1, blocks)
        window = tf.concat([start, end - start], 0)
    pixels = tf.image.decode_and_crop_jpeg(
        encoded, window, channels=3, ratio=reduction or 1, dct_method=_DCT
    )
    return pixels if reduction else pixels[:, x - left : x - left + width]


def _crop_jpeg(
    encoded: tf.Tensor,
    size: tf.Tensor,
    orientation: tf.Tensor,
    window: tf.Tensor,
    reduction: int | None,
) -> tf.Tensor:
    """Return `_decode_jpeg` of a window of the upright image."""
    return tf.cond(
        orientation == UPRIGHT,
        lambda: _decode_jpeg(encoded, size, window, reduction),
        lambda: _crop_rotated(encoded, size, orientation, window, reduction),
    )


@one_operation
def _crop_rotated(
    encoded: tf.Tensor,
    size: tf.Tensor,
    orientation: tf.Tensor,
    window: tf.Tensor,
    reduction: int | None,
) -> tf.Tensor:
    stored = stored_window(window, size, orientation)
    pixels = _decode_jpeg(encoded, turned_size(size, orientation), stored, reduction)
    return turned_pixels(pixels, orientation)


@one_operation
def _crop(
    encoded: tf.Tensor,
    jpeg: tf.Tensor,
    size: tf.Tensor,
    orientation: tf.Tensor,
    rgba: tf.Tensor,
    window: tf.Tensor,
) -> tf.Tensor:
    """Return `EncodedImage.crop`."""
    return tf.cond(
        jpeg,
        lambda: _crop_jpeg(encoded, size, orientation, window, None),
        lambda: _over_white(_slice(rgba, window)),
    )


# `EncodedImage.within_upright`
_upright_box = one_operation(upright_window)


def _over_white(rgba: tf.Tensor) -> tf.Tensor:
    """Composite uint8 RGBA (straight alpha) over white, and round to the nearest level."""
    rgba = tf.cast(rgba, tf.float32)
    opacity = rgba[..., 3:] / 255.0
    return tf.cast(tf.round(255.0 + (rgba[..., :3] - 255.0) * opacity), tf.uint8)


def _opened(encoded: tf.Tensor, max_pixels: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the size, int32 `[2]`, orientation, and pixels, uint8 [height, width, 4], of a file.

    Size and pixels refer to the upright image. A JPEG is not decoded yet and returns no pixels.
    """
    orientation = read_orientation(encoded)
    size, stored = tf.cond(
        is_jpeg(encoded),
        lambda: (_jpeg_size(encoded, max_pixels), tf.zeros([0, 0, 4], tf.uint8)),
        lambda: _decoded(encoded, max_pixels),
    )
    rgba = tf.cond(
        orientation == UPRIGHT, lambda: stored, lambda: turned_pixels(stored, orientation)
    )
    return turned_size(size, orientation), orientation, rgba


_opened_in_one_operation = one_operation(_opened)


def _jpeg_size(encoded: tf.Tensor, max_pixels: int) -> tf.Tensor:
    size = tf.io.extract_jpeg_shape(encoded)[:2]
    return checked_pixels(size, size[0], size[1], max_pixels)


def _decoded(encoded: tf.Tensor, max_pixels: int) -> tuple[tf.Tensor, tf.Tensor]:
    pixels = _decode_rgba(checked_pixels(encoded, *announced_size(encoded), max_pixels), max_pixels)
    return tf.shape(pixels)[:2], pixels


def _decode_rgba(encoded: tf.Tensor, max_pixels: int) -> tf.Tensor:
    """Decode a file that is not a JPEG to uint8 [height, width, 4]."""
    webp, flags = is_webp(encoded), numbers(encoded, 20, 1)[0]
    animated = webp & holds(encoded, 12, b"VP8X") & (flags & _ANIMATION_BIT != 0)
    formats = [
        (is_png(encoded), lambda: _decode_png(encoded)),
        (animated, lambda: _refuse(encoded, "an animated WebP: only still images can be read")),
        (webp, lambda: _decode_webp(encoded)),
        (holds(encoded, 0, b"BM"), lambda: _decode_bmp(encoded)),
        (holds(encoded, 0, b"GIF8"), lambda: _decode_gif(encoded, max_pixels)),
    ]
    # Each decoder is in its branch and only runs if the branch is taken, because an animated WebP
    # crashes the process in TensorFlow's decoder. Use nested conditions, not a switch_case: with op
    # determinism, tf.data treats a switch that contains assertions as stateful and runs it
    # sequentially, but it runs conditions with assertions in parallel.
    branch = functools.partial(_refuse, encoded, "not a JPEG, PNG, WebP, BMP or GIF image")
    for is_this, decode_this in reversed(formats):
        branch = functools.partial(tf.cond, is_this, decode_this, branch)
    return tf.ensure_shape(branch(), [None, None, 4])


def _refuse(encoded: tf.Tensor, reason: str) -> tf.Tensor:
    # The condition depends on the data, so that it fails when the branch runs, not during tracing.
    refused = tf.debugging.Assert(tf.strings.length(encoded) < 0, [reason])
    with tf.control_dependencies([] if refused is None else [refused]):
        return tf.zeros([0, 0, 4], tf.uint8)


def _opaque(rgb: tf.Tensor) -> tf.Tensor:
    return tf.pad(rgb, [[0, 0], [0, 0], [0, 1]], constant_values=255)


def _decode_png(encoded: tf.Tensor) -> tf.Tensor:
    rgba = tf.io.decode_png(encoded, channels=4)
    # For a file of 1, 2, or 4 bits without transparency, TensorFlow sets alpha to the largest level
    # of the file, not to 255. In practice, no transparent image has this value in all pixels.
    bits = numbers(encoded, 24, 1)[0]
    largest = tf.cast(2 ** tf.minimum(bits, 8) - 1, tf.uint8)
    return tf.cond(
        (bits < 8) & tf.reduce_all(rgba[..., 3] == largest),
        lambda: _opaque(rgba[..., :3]),
        lambda: rgba,
    )


def _decode_webp(encoded: tf.Tensor) -> tf.Tensor:
    pixels = tf.io.decode_webp(encoded)[0]  # The decoder cannot convert between 3 and 4 channels.
    return tf.cond(tf.shape(pixels)[-1] == 4, lambda: pixels, lambda: _opaque(pixels))


def _decode_gif(encoded: tf.Tensor, max_pixels: int) -> tf.Tensor:
    first = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    # The header was checked before, but an image can be larger than the screen in the header.
    first = checked_pixels(first, tf.shape(first)[0], tf.shape(first)[1], max_pixels)
    return _opaque(tf.ensure_shape(first, [None, None, 3]))


def _decode_bmp(encoded: tf.Tensor) -> tf.Tensor:
    """Decode an uncompressed BMP of 8 (palette), 24, or 32 bits per pixel."""
    bits = little_endian(numbers(encoded, 28, 2))
    compression = numbers(encoded, 30, 1)[0]
    # 0 is uncompressed, 3 is channel masks, in practice BGRA.
    readable = ((compression == 0) & ((bits == 8) | (bits == 24))) | (
        ((compression == 0) | (compression == 3)) & (bits == 32)
    )
    return tf.cond(
        readable,
        lambda: tf.cond(
            bits == 8,
            lambda: _opaque(_decode_palette_bmp(encoded)),
            lambda: _opaque(tf.io.decode_bmp(encoded)[..., :3]),
        ),
        lambda: _refuse(encoded, "a BMP that is compressed or does not have 8, 24, or 32 bits"),
    )


def _decode_palette_bmp(encoded: tf.Tensor) -> tf.Tensor:
    # TensorFlow decodes the palette's indices as gray levels. Look up their colors here.
    indices = tf.io.decode_bmp(encoded)[..., 0]
    start, end = (little_endian(numbers(encoded, place, 4)) for place in (14, 10))
    start += 14
    # A color has four bytes: blue, green, red, and an unused one. The offset in a damaged header
    # can be outside the file. `part` then prevents an error message that contains the whole file.
    palette = part(encoded, start, (end - start) // 4 * 4)
    colors = tf.reshape(tf.io.decode_raw(palette, tf.uint8), [-1, 4])[:, 2::-1]
    return tf.gather(colors, tf.cast(indices, tf.int32))
