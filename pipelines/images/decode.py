"""Needs TensorFlow. From the bytes of an image file to RGB pixels, whole or just one window.

Graph operations only, so the same code runs in a tf.data pipeline and inside a SavedModel.

What a file becomes: uint8 RGB. Grey is repeated, CMYK and palettes are converted, 16 bits keep
their high byte, an animated GIF gives its first frame, and whatever is transparent in a PNG or a
WebP lies on white. (TensorFlow reads no transparency from BMP and GIF: a BMP keeps the colours it
stores, a GIF's transparent pixels are black.) An EXIF orientation is applied (see `orientation`):
sizes and windows are those of the upright image. JPEG is decoded with the accurate integer
transform: the same bits as Pillow, and no slower than the fast one.
"""

import functools
from collections.abc import Callable
from typing import TypeAlias, cast

import tensorflow as tf

from keras_dml._common.errors import ArgumentTypeError
from pipelines.images import gif
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

# Bytes of an image file, scalar string, or pixels; alone, or with the box that counts.
Source: TypeAlias = tf.Tensor | tuple[tf.Tensor, tf.Tensor]

_HEADER_BYTES = 32
_ANIMATION_BIT = 0x02  # of the flags in the VP8X chunk of a WebP file
# Chroma is stored at half the width and interpolated, so a decoded window's outer columns need
# their neighbours to come out as they do in the whole image.
_CHROMA_REACH = 2
_DCT = "INTEGER_ACCURATE"


class PixelImage:
    """An image that is already pixels, with the interface of `EncodedImage`.

    Args:
        pixels: uint8 [height, width, channels], channels 1 or 3 (statically known).
    """

    is_jpeg = is_upright_jpeg = False

    def __init__(self, pixels: tf.Tensor) -> None:
        if pixels.dtype != tf.uint8 or pixels.shape.rank != 3 or pixels.shape[-1] not in (1, 3):
            raise ArgumentTypeError(
                "source must be a scalar string (the bytes of an image file) or uint8 "
                "[height, width, channels] with 1 or 3 channels. "
                f"Received: source with dtype={pixels.dtype.name}, shape={pixels.shape}"
            )
        self._pixels = pixels
        self.size = tf.shape(pixels)[:2]

    def crop(self, window: tf.Tensor) -> tf.Tensor:
        """Pixels of `window` = int32 [y, x, height, width], uint8 [height, width, channels]."""
        return _slice(self._pixels, window)

    def within_upright(self, box: tf.Tensor) -> tf.Tensor:
        """As `EncodedImage.within_upright`: pixels are upright."""
        return box


class EncodedImage:
    """The bytes of an image file, opened: its size first, then the pixels of a window.

    A JPEG gives its size from its header and is decoded for the window alone, never whole. The
    other formats are decoded once, and the window is cut out of that.

    Args:
        encoded: scalar string: a JPEG, PNG, WebP, BMP or GIF file, told apart by its first bytes.
        max_pixels: how many pixels it may have; its header says so before anything is decoded.

    Attributes:
        size: int32 [2], height and width in pixels, of the upright image.
        is_jpeg: scalar bool, whether `crop_jpeg` may be called.
        is_upright_jpeg: scalar bool, whether `crop_upright_jpeg` may be: most photos, with the
            fewest operations. False of some upright JPEGs too.

    Raises (where the operations run):
        tf.errors.InvalidArgumentError: another format, damaged data, more pixels than
            `max_pixels`, or an animated WebP, which TensorFlow's decoder must not see: it writes
            past its buffer.
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
        """Pixels of `window` = int32 [y, x, height, width], uint8 [height, width, 3].

        They are exactly those of the whole decoded image in that place.
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
        """`crop_jpeg` of a JPEG that `is_upright_jpeg`."""
        return _QUICK_CROPS[1](self._encoded, self.size, window)

    def crop_jpeg(self, window: tf.Tensor, reduction: int = 1) -> tf.Tensor:
        """Pixels of `window` of a JPEG, as quickly as can be, uint8 [height, width, 3].

        Without reduction they are those of `crop`, but for the colour (not the brightness) of the
        outermost stored columns. The decoder averages `reduction` squared pixels into one at no
        cost; the window is rounded to such blocks, to one at least.

        Args:
            window: int32 [y, x, height, width] in pixels of the upright image.
            reduction: 1, 2, 4 or 8.
        """
        crop = _QUICK_CROPS[reduction]
        window = tf.convert_to_tensor(window)
        return tf.cond(
            self._orientation == UPRIGHT,
            lambda: crop(self._encoded, self.size, window),
            lambda: _crop_turned(self._encoded, self.size, self._orientation, window, crop),
        )

    def within_upright(self, box: tf.Tensor) -> tf.Tensor:
        """The part of the upright image that `box`, int32 [4] in stored pixels, is."""
        return tf.cond(
            self._orientation == UPRIGHT,
            lambda: box,
            lambda: apart(lambda: upright_window(box, self.size, self._orientation)),
        )


class BoxedImage:
    """The part of an image that lies in a box, as an image of its own.

    Args:
        image: `EncodedImage` or `PixelImage`.
        box: int64 [4]: y, x, height, width, in pixels as they are stored, before any orientation
            is applied. What of it lies outside the image is cut off; at least one pixel is left.
    """

    def __init__(self, image: EncodedImage | PixelImage, box: tf.Tensor) -> None:
        start, extent = tf.split(image.within_upright(tf.cast(box, tf.int32)), 2)
        self._image = image
        self._start = tf.clip_by_value(start, 0, image.size - 1)
        end = tf.clip_by_value(start + extent, self._start + 1, image.size)
        self.size = end - self._start
        self.is_jpeg, self.is_upright_jpeg = image.is_jpeg, image.is_upright_jpeg

    def crop(self, window: tf.Tensor) -> tf.Tensor:
        """Pixels of `window` = int32 [y, x, height, width], counted from the box's corner."""
        return self._image.crop(self._within_image(window))

    def crop_upright_jpeg(self, window: tf.Tensor) -> tf.Tensor:
        """As `EncodedImage.crop_upright_jpeg`, the window counted from the box's corner."""
        return cast(EncodedImage, self._image).crop_upright_jpeg(self._within_image(window))

    def crop_jpeg(self, window: tf.Tensor, reduction: int = 1) -> tf.Tensor:
        """As `EncodedImage.crop_jpeg`, the window counted from the box's corner."""
        return cast(EncodedImage, self._image).crop_jpeg(self._within_image(window), reduction)

    def _within_image(self, window: tf.Tensor) -> tf.Tensor:
        return tf.concat([self._start + window[:2], window[2:]], 0)


Image: TypeAlias = EncodedImage | PixelImage | BoxedImage


def open_image(source: Source, max_pixels: int = MOST_PIXELS) -> Image:
    """`EncodedImage` of a scalar string tensor, `PixelImage` of a uint8 tensor.

    A pair of such a tensor and a box, integers [4], gives the `BoxedImage`. `max_pixels` is that of
    `EncodedImage`.

    Raises:
        TypeError: `source` is none of these (at trace time).
    """
    if isinstance(source, tuple):
        image, box = source
        return BoxedImage(_open_whole(image, max_pixels), box)
    return _open_whole(source, max_pixels)


def _open_whole(source: tf.Tensor, max_pixels: int) -> EncodedImage | PixelImage:
    source = tf.convert_to_tensor(source)
    return EncodedImage(source, max_pixels) if source.dtype == tf.string else PixelImage(source)


def image_size(encoded: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Height and width of an encoded image, two int32 scalars; a JPEG is not decoded for it."""
    height, width = tf.unstack(EncodedImage(encoded).size)
    return height, width


def decode_image(encoded: tf.Tensor, max_pixels: int = MOST_PIXELS) -> tf.Tensor:
    """The whole encoded image as uint8 [height, width, 3]."""
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


# Traced once in a process for each `crop`, and one operation of the graph: most files need none.
@functools.partial(
    tf.function,
    autograph=False,
    experimental_attributes={"_noinline": True},
)
def _crop_turned(
    encoded: tf.Tensor,
    size: tf.Tensor,
    orientation: tf.Tensor,
    window: tf.Tensor,
    crop: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor],
) -> tf.Tensor:
    """What `crop` reads of the stored image for a window of the upright one, turned upright."""
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
    """`EncodedImage.crop` of what is no upright JPEG."""

    def of_jpeg() -> tf.Tensor:
        return tf.cond(
            orientation == UPRIGHT,
            lambda: _crop_jpeg_exactly(encoded, size, window),
            lambda: _crop_turned(encoded, size, orientation, window, _crop_jpeg_exactly),
        )

    return tf.cond(jpeg, of_jpeg, lambda: _over_white(_slice(rgba, window)))


def _over_white(rgba: tf.Tensor) -> tf.Tensor:
    """Composite straight-alpha uint8 RGBA over white, rounded to the nearest level."""
    rgba = tf.cast(rgba, tf.float32)
    opacity = rgba[..., 3:] / 255.0
    return tf.cast(tf.round(255.0 + (rgba[..., :3] - 255.0) * opacity), tf.uint8)


def apart(function: Callable[[], tf.Tensor]) -> tf.Tensor:
    """`function()`, kept as one operation of the graph.

    What a condition leaves out still costs a little for each of its operations, a tenth of the time
    that a small photograph takes.
    """
    if tf.executing_eagerly():
        return function()
    return tf.function(function, autograph=False, experimental_attributes={"_noinline": True})()


def _open_upright_jpeg(
    encoded: tf.Tensor, max_pixels: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """As `_open_other`, of a JPEG that `looks_upright`: without its pixels."""
    return _jpeg_size(encoded, max_pixels), tf.constant(UPRIGHT), tf.zeros([0, 0, 4], tf.uint8)


def _jpeg_size(encoded: tf.Tensor, max_pixels: int) -> tf.Tensor:
    size = tf.io.extract_jpeg_shape(encoded)[:2]
    with tf.control_dependencies(check_pixels(size[0], size[1], max_pixels)):
        return tf.identity(size)


def _open_other(encoded: tf.Tensor, max_pixels: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Of everything else: size, int32 [2], orientation, pixels, uint8 [height, width, 4].

    Size and pixels are those of the upright image; a JPEG is not decoded yet and has none.
    """
    if tf.executing_eagerly():
        return _opened(encoded, max_pixels)
    return _opened_apart(max_pixels)(encoded)


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
def _opened_apart(
    max_pixels: int,
) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
    """As `apart` does it, but traced once in a process: for each pipeline takes half a second."""
    return tf.function(
        functools.partial(_opened, max_pixels=max_pixels),
        input_signature=[tf.TensorSpec([], tf.string)],
        autograph=False,
        experimental_attributes={"_noinline": True},
    )


def _decode_rgba(encoded: tf.Tensor, header: tf.Tensor, max_pixels: int) -> tf.Tensor:
    """Decode everything but JPEG to uint8 [height, width, 4]."""
    is_webp = _holds(header, 0, b"RIFF") & _holds(header, 8, b"WEBP")
    flags = tf.cast(header[20], tf.int32)
    animated = is_webp & _holds(header, 12, b"VP8X") & (flags & _ANIMATION_BIT != 0)
    formats = [
        (_holds(header, 0, b"\x89PNG\r\n\x1a\n"), lambda: _decode_png(encoded, header)),
        (animated, lambda: _refuse(encoded, "an animated WebP: only still images can be read")),
        (is_webp, lambda: _decode_webp(encoded)),
        (_holds(header, 0, b"BM"), lambda: _decode_bmp(encoded, header)),
        (_holds(header, 0, b"GIF8"), lambda: apart(lambda: _decode_gif(encoded, max_pixels))),
    ]
    # Each decoder stands in a branch of its own and cannot start unless its branch is taken: an
    # animated WebP in TensorFlow's decoder ends the whole process. Nested conditions, not one
    # switch_case: under op determinism tf.data looks for assertions inside a condition, finds them
    # harmless and keeps working in parallel, but takes a switch with them for stateful.
    branch = functools.partial(_refuse, encoded, "not a JPEG, PNG, WebP, BMP or GIF image")
    for is_this, decode_this in reversed(formats):
        branch = functools.partial(tf.cond, is_this, decode_this, branch)
    return tf.ensure_shape(branch(), [None, None, 4])


def _refuse(encoded: tf.Tensor, reason: str) -> tf.Tensor:
    # The condition depends on the data, so that it fails when the branch runs, not when traced.
    refused = tf.debugging.Assert(tf.strings.length(encoded) < 0, [reason])
    with tf.control_dependencies([] if refused is None else [refused]):
        return tf.zeros([0, 0, 4], tf.uint8)


def _opaque(rgb: tf.Tensor) -> tf.Tensor:
    return tf.pad(rgb, [[0, 0], [0, 0], [0, 1]], constant_values=255)


def _decode_png(encoded: tf.Tensor, header: tf.Tensor) -> tf.Tensor:
    rgba = tf.io.decode_png(encoded, channels=4)
    # A file of 1, 2 or 4 bits without transparency comes with its own largest level, not 255, for
    # opaque. That every pixel of a transparent image has just that value does not happen.
    bits = tf.minimum(header[24], 8)
    largest = tf.bitwise.left_shift(tf.constant(1, tf.uint8), bits) - 1
    return tf.cond(
        (bits < 8) & tf.reduce_all(rgba[..., 3] == largest),
        lambda: _opaque(rgba[..., :3]),
        lambda: rgba,
    )


def _decode_webp(encoded: tf.Tensor) -> tf.Tensor:
    pixels = tf.io.decode_webp(encoded)[0]  # 3 or 4 channels: the decoder takes only the file's own
    return tf.cond(tf.shape(pixels)[-1] == 4, lambda: pixels, lambda: _opaque(pixels))


def _decode_gif(encoded: tf.Tensor, max_pixels: int) -> tf.Tensor:
    return _opaque(tf.io.decode_gif(gif.first_image(encoded, max_pixels))[0])


def _decode_bmp(encoded: tf.Tensor, header: tf.Tensor) -> tf.Tensor:
    """BMP of 8 (palette), 24 or 32 bits a pixel, not compressed."""
    bits = tf.cast(header[28], tf.int32) + 256 * tf.cast(header[29], tf.int32)
    compression = header[30]
    # 0: plain rows; 3: channel masks, which are BGRA in practice.
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
        lambda: _refuse(encoded, "a BMP that is compressed or has other than 8, 24 or 32 bits"),
    )


def _decode_palette_bmp(encoded: tf.Tensor, header: tf.Tensor) -> tf.Tensor:
    # TensorFlow takes the palette's indices for grey levels: look the colours up ourselves.
    indices = tf.io.decode_bmp(encoded)[..., 0]
    scale = tf.constant([1, 2**8, 2**16, 2**24], tf.int64)
    start, end = (tf.reduce_sum(numbers(encoded, place, 4) * scale) for place in (14, 10))
    start += 14
    # Four bytes a colour: blue, green, red and one that means nothing. What a damaged header names
    # may lie anywhere; of a piece that is not there TensorFlow would print the whole file.
    palette = part(encoded, start, (end - start) // 4 * 4)
    colors = tf.reshape(tf.io.decode_raw(palette, tf.uint8), [-1, 4])[:, 2::-1]
    return tf.gather(colors, tf.cast(indices, tf.int32))
