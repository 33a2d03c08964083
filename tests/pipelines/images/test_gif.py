"""GIF files: the first frame, at most `max_pixels`."""

import io

import numpy as np
import pytest
import tensorflow as tf
import tiers
from PIL import Image

from pipelines.images import decode

decode_image = tf.function(
    decode.decode_image, input_signature=[tf.TensorSpec([], tf.string)], autograph=False
)


def frame(seed, size=(40, 30), colors=32):
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(noise).quantize(colors)


def encode(*frames, **options):
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], **options)
    return file.getvalue()


FILES = {
    "one_frame": encode(frame(0)),
    "two_colors": encode(frame(0, colors=2)),
    "not_interlaced": encode(frame(0), interlace=0),  # Pillow interlaces by default
    "several_frames": encode(*[frame(seed) for seed in range(4)], loop=0, duration=50),
    "transparent": encode(*[frame(seed) for seed in range(3)], transparency=3, disposal=2),
    "comment_and_loop": encode(frame(0), frame(1), comment=b"\x2c;" * 200, loop=3),
}


@tiers.parametrize("name", FILES, ["one_frame", "several_frames", "transparent"])
def test_first_frame_keeps_its_pixels(name):
    expected = tf.io.decode_gif(FILES[name])[0]
    np.testing.assert_array_equal(decode_image(FILES[name]), expected)
    np.testing.assert_array_equal(decode.decode_image(FILES[name]), expected)


def test_truncated_or_changed_files_give_pixels_or_an_error():
    encoded = FILES["several_frames"]
    rng = np.random.default_rng(0)
    refused = 0
    for trial in range(60):
        damaged = bytearray(encoded)
        if trial % 2:
            damaged = damaged[: rng.integers(len(encoded))]
        else:
            for at in rng.integers(10, len(encoded), 3):
                damaged[at] = rng.integers(256)
        try:
            assert decode_image(bytes(damaged)).shape[-1] == 3
        except tf.errors.InvalidArgumentError:
            refused += 1
    assert 10 <= refused < 60


@pytest.mark.parametrize("side", [10_001, 40_000, 65_535])
@pytest.mark.parametrize("data", [b"", b"\x02\x01\0\0;"])
def test_small_file_that_announces_gigapixels_is_refused(side, data):
    sides = side.to_bytes(2, "little") * 2
    encoded = b"GIF89a" + sides + b"\0\0\0" + b"\x2c\0\0\0\0" + sides + b"\0" + data
    with pytest.raises(tf.errors.InvalidArgumentError, match="an image of more than 50 million"):
        decode_image(encoded)
