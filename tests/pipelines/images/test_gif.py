import io

import numpy as np
import pytest
import tensorflow as tf
import tiers
from PIL import Image

from pipelines.images import decode, gif

SPEC = [tf.TensorSpec([], tf.string)]
first_image = tf.function(gif.first_image, input_signature=SPEC, autograph=False)
decode_image = tf.function(decode.decode_image, input_signature=SPEC, autograph=False)


def frame(seed, size=(40, 30), colors=32):
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(noise).quantize(colors)


def encode(*frames, **options):
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], **options)
    return file.getvalue()


def frames_in(encoded):
    return Image.open(io.BytesIO(encoded)).n_frames


def header(width, height):
    return b"GIF89a" + width.to_bytes(2, "little") + height.to_bytes(2, "little") + b"\0\0\0"


def image_block(encoded):
    """Return the bytes between the color table of the header and the end."""
    table = 3 * 2 ** ((encoded[10] & 7) + 1) if encoded[10] & 0x80 else 0
    return encoded[13 + table : -1]


def moved(encoded, left, top):
    """Move the image of a file with one image and no extensions."""
    at = len(encoded) - 1 - len(image_block(encoded)) + 1
    place = left.to_bytes(2, "little") + top.to_bytes(2, "little")
    return encoded[:at] + place + encoded[at + 4 :]


def in_sub_blocks(encoded, lengths):
    """Divide the data of a file with one image and no extensions into sub-blocks."""
    start = len(encoded) - 1 - len(image_block(encoded)) + 11  # after descriptor and code size
    data, at = b"", start
    while encoded[at]:
        data += encoded[at + 1 : at + 1 + encoded[at]]
        at += 1 + encoded[at]
    cut, at = b"", 0
    for length in lengths:
        part = data[at : at + length]
        cut += bytes([len(part)]) + part if part else b""
        at += length
    assert at >= len(data)
    return encoded[:start] + cut + b"\0;"


def then(encoded, other):
    """Append the image of another file."""
    return encoded[:-1] + image_block(other) + b";"


STILL = encode(frame(0))
TABLE = STILL[: -1 - len(image_block(STILL))]
LARGE = encode(frame(0, (300, 220), 256))
FULL = b"\xff" + b"\x2c" * 255
COMMENTS = b"\x21\xfe\x03abc\0" + b"\x21\xfe\0" * 3000 + b"\x21\xfe" + FULL * 40 + b"\0"
LENGTHS = np.random.default_rng(0).integers(1, 256, 20_000).tolist()
# The first frame is not smaller than the others. See test_smaller_first_frame_is_complete.
FILES = {
    "one_frame": STILL,
    "many_sub_blocks": then(LARGE, STILL),
    "shortest_sub_blocks": then(in_sub_blocks(STILL, [1] * 5000), STILL),
    "short_sub_blocks": then(in_sub_blocks(STILL, [1, 2] * 2500), STILL),
    "uneven_sub_blocks": then(in_sub_blocks(LARGE, LENGTHS), STILL),
    "comments": then(TABLE + COMMENTS + image_block(STILL) + b";", STILL),
    "version_87": b"GIF87a" + STILL[6:],
    "without_end": STILL[:-1],
    "two_colors": encode(frame(0, colors=2)),
    "not_interlaced": encode(frame(0), interlace=0),  # Pillow interlaces by default
    "several_frames": encode(*[frame(seed) for seed in range(4)], loop=0, duration=50),
    "one_color_table": encode(*[frame(0).point(lambda i, k=k: (i + k) % 32) for k in range(3)]),
    "transparent": encode(*[frame(seed) for seed in range(3)], transparency=3, disposal=2),
    "comment_and_loop": encode(frame(0), frame(1), comment=b"\x2c;" * 200, loop=3),
    "local_color_table": then(
        header(40, 30) + image_block(encode(frame(0), include_color_table=True)) + b";",
        encode(frame(1), include_color_table=True),
    ),
}


@tiers.parametrize(
    "name",
    FILES,
    ["one_frame", "uneven_sub_blocks", "comments", "several_frames", "local_color_table"],
)
def test_the_first_image_keeps_its_pixels(name):
    cut = first_image(FILES[name]).numpy()
    assert frames_in(cut) == 1 and cut.endswith(b"\0;")
    expected = tf.io.decode_gif(FILES[name])[0]
    np.testing.assert_array_equal(tf.io.decode_gif(cut)[0], expected)
    np.testing.assert_array_equal(decode_image(FILES[name]), expected)
    np.testing.assert_array_equal(gif.first_image(tf.constant(FILES[name])), cut)


@pytest.mark.parametrize("name", ["one_frame", "several_frames", "comment_and_loop", "transparent"])
def test_file_cut_off_at_any_byte(name):
    encoded = FILES[name]
    expected = tf.io.decode_gif(encoded)[0].numpy()
    first = len(first_image(encoded).numpy()) - 1
    for size in [*range(0, len(encoded), 50), first - 1, first]:
        if size < first:
            assert first_image(encoded[:size]).numpy() == encoded[:size]
            with pytest.raises(tf.errors.InvalidArgumentError):
                decode_image(encoded[:size])
        else:
            np.testing.assert_array_equal(decode_image(encoded[:size]), expected)


def test_only_the_first_of_many_frames_is_decoded():
    tiny, large = encode(frame(0, (3, 2))), encode(Image.new("P", (2000, 2000)))
    table = tiny[: -1 - len(image_block(tiny))]
    encoded = then(table + image_block(tiny) * 500 + b";", large)
    cut = first_image(encoded).numpy()
    assert cut == tiny
    assert decode_image(encoded).shape == (2, 3, 3)  # all frames: 6 GB


@pytest.mark.parametrize(("left", "top"), [(7, 5), (60_000, 300)])
def test_smaller_first_frame_is_complete(left, top):
    encoded = then(moved(STILL, left, top), encode(frame(1, (90, 80))))
    np.testing.assert_array_equal(decode_image(encoded), tf.io.decode_gif(STILL)[0])


@pytest.mark.parametrize("side", [10_001, 40_000, 65_535])
@pytest.mark.parametrize("data", [b"", b"\x02\x01\0\0;"])
def test_small_file_that_announces_gigapixels_is_refused(side, data):
    descriptor = b"\x2c\0\0\0\0" + side.to_bytes(2, "little") * 2 + b"\0"
    with pytest.raises(tf.errors.InvalidArgumentError, match="an image of more than 50 million"):
        decode_image(header(side, side) + descriptor + data)


@pytest.mark.slow
def test_file_with_too_many_sub_blocks_is_refused():
    """The images after them must not reach TensorFlow's decoder."""
    comment = b"\x21\xfe" + b"\x01\x2c" * 500_000 + b"\0"
    encoded = then(TABLE + comment + image_block(STILL) + b";", STILL)
    assert len(first_image(encoded).numpy()) < len(encoded) - 2 * len(image_block(STILL))
    with pytest.raises(tf.errors.InvalidArgumentError):
        decode_image(encoded)


@pytest.mark.slow
def test_inside_a_saved_model(tmp_path):
    module = tf.Module()
    module.sizes = tf.function(
        lambda files: tf.map_fn(
            lambda file: tf.shape(decode.decode_image(file)), files, fn_output_signature=tf.int32
        ),
        input_signature=[tf.TensorSpec([None], tf.string)],
        autograph=False,
    )
    tf.saved_model.save(module, str(tmp_path))
    files = [FILES["several_frames"], LARGE, FILES["comments"]]
    sizes = tf.saved_model.load(str(tmp_path)).sizes(files)
    np.testing.assert_array_equal(sizes, [[30, 40, 3], [220, 300, 3], [30, 40, 3]])
    dataset = tf.data.Dataset.from_tensor_slices(files).map(decode.image_size, tf.data.AUTOTUNE)
    assert list(dataset.as_numpy_iterator()) == [(30, 40), (220, 300), (30, 40)]
