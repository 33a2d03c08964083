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
from collections.abc import Callable
from typing import TypeAlias, cast

import tensorflow as tf

from keras_dml._common.errors import ArgumentTypeError
from pipelines.images.file_bytes import numbers, part
from pipelines.images.limits import MOST_PIXELS, announced_size, check_pixels
from pipelines.images.orientation import (
    UPRIGHT,
    is_jpeg,
    looks_upright,
    read_orientation,
    stored_window,
    turned_pixels,
    turned_size,
    upright_window,
)

# The bytes of an image file, scalar string, or pixels, uint8. Optionally with a box.
Source: TypeAlias = tf.Tensor | tuple[tf.Tensor, tf.Tensor]

_HEADER_BYTES = 32
_ANIMATION_BIT = 0x02  # in the flags of a WebP's VP8X chunk
# Chroma is stored at half the width and interpolated. The outer columns of a window therefore need
# their neighbors to equal the columns of the whole image.
_CHROMA_REACH = 2
_DCT = "INTEGER_ACCURATE"


class PixelImage:
    """An image of decoded pixels, with the interface of `EncodedImage`.

    Args:
        pixels: uint8 `[height, width, channels]`, with 1 or 3 channels (statically known).

    Raises:
        TypeError: `pixels` has another dtype or shape (at trace time).
    """

    is_jpeg = is_upright_jpeg = False

    def __init__(self, pixels: tf.Tensor) -> None:
        if pixels.dtype != tf.uint8 or pixels.shape.rank != 3 or pixels.shape[-1] not in (1, 3):
            raise ArgumentTypeError(
                "source must be a scalar string (the bytes of an image file), or uint8 "
                "[height, width, channels] with 1 or 3 channels. "
                f"Received: source with dtype={pixels.dtype.name}, shape={pixels.shape}"
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
        bytes. max_pixels: Most pixels that the image can have, checked against the header before
        decoding.

    Attributes:
        size: int32 `[2]`, height and width of the upright image in pixels.
        is_jpeg: Scalar bool, whether `crop_jpeg` is valid.
        is_upright_jpeg: Scalar bool, whether `crop_upright_jpeg`, the fastest method, is valid.
            True for most photos. False for some upright JPEGs.

    Raises (when the operations run):
        tf.errors.InvalidArgumentError: The file has another format, is damaged, or has more than
            `max_pixels`. Or it is an animated WebP, on which TensorFlow's decoder writes past its
            buffer.
    """

    def __init__(self, encoded: tf.Tensor, max_pixels: int = MOST_PIXELS) -> None:
        self._encoded = encoded
        self.is_jpeg = is_jpeg(encoded)
        self.is_upright_jpeg = looks_upright(encoded)
        self.size, self._orientation, self._rgba = tf.cond(
            self.is_upright_jpeg,
            lambda: _open_upright_jpeg(encoded, max_pixels),
            lambda: _open_other(encoded, max_pixels),
        )
        self.size.set_shape([2])

    def crop(self, window: tf.Tensor) -> tf.Tensor:
        """Return the pixels of `window` = int32 [y, x, height, width], uint8 [height, width, 3].

        They are equal to that part of the whole decoded image.
        """
        window = tf.convert_to_tensor(window)
        return tf.cond(
            self.is_upright_jpeg,
            lambda: _crop_jpeg_exactly(self._encoded, self.size, window),
            lambda: _crop_other(
                self._encoded, self.is_jpeg, self.size, self._orientation, self._rgba, window
            ),
        )

    def crop_upright_jpeg(self, window: tf.Tensor) -> tf.Tensor:
        """Return `crop_jpeg` of an image that is `is_upright_jpeg`."""
        return _QUICK_CROPS[1](self._encoded, self.size, window)

    def crop_jpeg(self, window: tf.Tensor, reduction: int = 1) -> tf.Tensor:
        """Return the pixels of a window of a JPEG quickly, uint8 [height, width, 3].

        Without reduction, they equal the result of `crop`, except for the color (not the
        brightness) of the outer columns. With reduction, the decoder averages blocks of `reduction`
        squared pixels at no cost. The window is rounded to whole blocks, at least one.

        Args:
            window: int32 [y, x, height, width] in pixels of the upright image.
            reduction: 1, 2, 4, or 8.
        """
        crop = _QUICK_CROPS[reduction]
        window = tf.convert_to_tensor(window)
        return tf.cond(
            self._orientation == UPRIGHT,
            lambda: crop(self._encoded, self.size, window),
            lambda: _crop_rotated(self._encoded, self.size, self._orientation, window, crop),
        )

    def within_upright(self, box: tf.Tensor) -> tf.Tensor:
        """Convert `box`, int32 `[4]` in stored pixels, to a window of the upright image."""
        return tf.cond(
            self._orientation == UPRIGHT,
            lambda: box,
            lambda: one_operation(lambda: upright_window(box, self.size, self._orientation)),
        )


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
        self.is_jpeg, self.is_upright_jpeg = image.is_jpeg, image.is_upright_jpeg

    def crop(self, window: tf.Tensor) -> tf.Tensor:
        """Return the pixels of `window` = int32 [y, x, height, width], relative to the box."""
        return self._image.crop(self._within_image(window))

    def crop_upright_jpeg(self, window: tf.Tensor) -> tf.Tensor:
        """Return `EncodedImage.crop_upright_jpeg` for a window relative to the box."""
        return cast(EncodedImage, self._image).crop_upright_jpeg(self._within_image(window))

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


def image_size(encoded: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return height and width of an encoded image, two int32 scalars, without decoding a JPEG."""
    height, width = tf.unstack(EncodedImage(encoded).size)
    return height, width


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


def _holds(header: tf.Tensor, start: int, expected: bytes) -> tf.Tensor:
    return tf.reduce_all(header[start : start + len(expected)] == list(expected))


def _slice(pixels: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    y, x, height, width = tf.unstack(window)
    return pixels[y : y + height, x : x + width]


def _crop_jpeg_exactly(encoded: tf.Tensor, size: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    y, x, height, width = tf.unstack(window)
    left = tf.maximum(x - _CHROMA_REACH, 0)
    right = tf.minimum(x + width + _CHROMA_REACH, size[1])
    pixels = tf.image.decode_and_crop_jpeg(
        encoded, [y, left, height, right - left], channels=3, dct_method=_DCT
    )
    return pixels[:, x - left : x - left + width]


def _crop_jpeg_quickly(
    reduction: int, encoded: tf.Tensor, size: tf.Tensor, window: tf.Tensor
) -> tf.Tensor:
    if reduction > 1:
        blocks = -(-size // reduction)
        start = tf.minimum((window[:2] + reduction // 2) // reduction, blocks - 1)
        end = (window[:2] + window[2:] + reduction // 2) // reduction
        end = tf.clip_by_value(end, start + 1, blocks)
        window = tf.concat([start, end - start], 0)
    return tf.image.decode_and_crop_jpeg(
        encoded, window, channels=3, ratio=reduction, dct_method=_DCT
    )


_QUICK_CROPS = {
    reduction: functools.partial(_crop_jpeg_quickly, reduction) for reduction in (1, 2, 4, 8)
}


# One operation of the graph, traced once per process for each `crop`. Most files do not need it.
@functools.partial(
    tf.function,
    autograph=False,
    experimental_attributes={"_noinline": True},
)
def _crop_rotated(
    encoded: tf.Tensor,
    size: tf.Tensor,
    orientation: tf.Tensor,
    window: tf.Tensor,
    crop: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor],
) -> tf.Tensor:
    """Return `crop` of a window of the upright image, for a file that is not upright."""
    stored = stored_window(window, size, orientation)
    pixels = crop(encoded, turned_size(size, orientation), stored)
    return turned_pixels(pixels, orientation)


@functools.partial(
    tf.function,
    autograph=False,
    reduce_retracing=True,
    experimental_attributes={"_noinline": True},
)
def _crop_other(
    encoded: tf.Tensor,
    jpeg: tf.Tensor,
    size: tf.Tensor,
    orientation: tf.Tensor,
    rgba: tf.Tensor,
    window: tf.Tensor,
) -> tf.Tensor:
    """Return `EncodedImage.crop` for files that are not upright JPEGs."""

    def cropped_jpeg() -> tf.Tensor:
        return tf.cond(
            orientation == UPRIGHT,
            lambda: _crop_jpeg_exactly(encoded, size, window),
            lambda: _crop_rotated(encoded, size, orientation, window, _crop_jpeg_exactly),
        )

    return tf.cond(jpeg, cropped_jpeg, lambda: _over_white(_slice(rgba, window)))


def _over_white(rgba: tf.Tensor) -> tf.Tensor:
    """Composite uint8 RGBA (straight alpha) over white, and round to the nearest level."""
    rgba = tf.cast(rgba, tf.float32)
    opacity = rgba[..., 3:] / 255.0
    return tf.cast(tf.round(255.0 + (rgba[..., :3] - 255.0) * opacity), tf.uint8)


def one_operation(function: Callable[[], tf.Tensor]) -> tf.Tensor:
    """Return `function()`, as one operation in a graph.

    Operations in an untaken branch still cost a little each, together a tenth of a small photo's
    time.
    """
    if tf.executing_eagerly():
        return function()
    return tf.function(function, autograph=False, experimental_attributes={"_noinline": True})()


def _open_upright_jpeg(
    encoded: tf.Tensor, max_pixels: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the same as `_open_other`, for a JPEG that `looks_upright`."""
    return _jpeg_size(encoded, max_pixels), tf.constant(UPRIGHT), tf.zeros([0, 0, 4], tf.uint8)


def _jpeg_size(encoded: tf.Tensor, max_pixels: int) -> tf.Tensor:
    size = tf.io.extract_jpeg_shape(encoded)[:2]
    with tf.control_dependencies(check_pixels(size[0], size[1], max_pixels)):
        return tf.identity(size)


def _open_other(encoded: tf.Tensor, max_pixels: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the size, int32 `[2]`, orientation, and pixels, uint8 [height, width, 4], of a file.

    Size and pixels refer to the upright image. A JPEG is not decoded yet and returns no pixels.
    """
    if tf.executing_eagerly():
        return _opened(encoded, max_pixels)
    return _opened_in_one_operation(max_pixels)(encoded)


def _opened(encoded: tf.Tensor, max_pixels: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
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


def _decoded(encoded: tf.Tensor, max_pixels: int) -> tuple[tf.Tensor, tf.Tensor]:
    with tf.control_dependencies(check_pixels(*announced_size(encoded), max_pixels)):
        encoded = tf.identity(encoded)
    header = tf.io.decode_raw(encoded, tf.uint8, fixed_length=_HEADER_BYTES)
    pixels = _decode_rgba(encoded, header, max_pixels)
    return tf.shape(pixels)[:2], pixels


@functools.lru_cache(maxsize=8)
def _opened_in_one_operation(
    max_pixels: int,
) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
    """Return `_opened` as one operation, as in `one_operation`, traced once per process, not per
    pipeline.

    Tracing takes half a second.
    """
    return tf.function(
        functools.partial(_opened, max_pixels=max_pixels),
        input_signature=[tf.TensorSpec([], tf.string)],
        autograph=False,
        experimental_attributes={"_noinline": True},
    )


def _decode_rgba(encoded: tf.Tensor, header: tf.Tensor, max_pixels: int) -> tf.Tensor:
    """Decode a file that is not a JPEG to uint8 [height, width, 4]."""
    is_webp = _holds(header, 0, b"RIFF") & _holds(header, 8, b"WEBP")
    flags = tf.cast(header[20], tf.int32)
    animated = is_webp & _holds(header, 12, b"VP8X") & (flags & _ANIMATION_BIT != 0)
    formats = [
        (_holds(header, 0, b"\x89PNG\r\n\x1a\n"), lambda: _decode_png(encoded, header)),
        (animated, lambda: _refuse(encoded, "an animated WebP: only still images can be read")),
        (is_webp, lambda: _decode_webp(encoded)),
        (_holds(header, 0, b"BM"), lambda: _decode_bmp(encoded, header)),
        (_holds(header, 0, b"GIF8"), lambda: _decode_gif(encoded, max_pixels)),
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


def _decode_png(encoded: tf.Tensor, header: tf.Tensor) -> tf.Tensor:
    rgba = tf.io.decode_png(encoded, channels=4)
    # For a file of 1, 2, or 4 bits without transparency, TensorFlow sets alpha to the largest level
    # of the file, not to 255. In practice, no transparent image has this value in all pixels.
    bits = tf.minimum(header[24], 8)
    largest = tf.bitwise.left_shift(tf.constant(1, tf.uint8), bits) - 1
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
    with tf.control_dependencies(check_pixels(tf.shape(first)[0], tf.shape(first)[1], max_pixels)):
        return _opaque(tf.ensure_shape(first, [None, None, 3]))


def _decode_bmp(encoded: tf.Tensor, header: tf.Tensor) -> tf.Tensor:
    """Decode an uncompressed BMP of 8 (palette), 24, or 32 bits per pixel."""
    bits = tf.cast(header[28], tf.int32) + 256 * tf.cast(header[29], tf.int32)
    compression = header[30]
    # 0 is uncompressed, 3 is channel masks, in practice BGRA.
    readable = ((compression == 0) & ((bits == 8) | (bits == 24))) | (
        ((compression == 0) | (compression == 3)) & (bits == 32)
    )
    return tf.cond(
        readable,
        lambda: tf.cond(
            bits == 8,
            lambda: _opaque(_decode_palette_bmp(encoded, header)),
            lambda: _opaque(tf.io.decode_bmp(encoded)[..., :3]),
        ),
        lambda: _refuse(encoded, "a BMP that is compressed or does not have 8, 24, or 32 bits"),
    )


def _decode_palette_bmp(encoded: tf.Tensor, header: tf.Tensor) -> tf.Tensor:
    # TensorFlow decodes the palette's indices as gray levels. Look up their colors here.
    indices = tf.io.decode_bmp(encoded)[..., 0]
    scale = tf.constant([1, 2**8, 2**16, 2**24], tf.int64)
    start, end = (tf.reduce_sum(numbers(encoded, place, 4) * scale) for place in (14, 10))
    start += 14
    # A color has four bytes: blue, green, red, and an unused one. The offset in a damaged header
    # can be outside the file. `part` then prevents an error message that contains the whole file.
    palette = part(encoded, start, (end - start) // 4 * 4)
    colors = tf.reshape(tf.io.decode_raw(palette, tf.uint8), [-1, 4])[:, 2::-1]
    return tf.gather(colors, tf.cast(indices, tf.int32))
